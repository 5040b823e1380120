#include "gating/plan.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

#include "format/lanes.hpp"
#include "seeddelta/compute.hpp"

namespace seeddelta {

namespace {

// Of checked tokens: the error of events in one of these switches them off at the place for good.
constexpr int kEarlyChecks = 8;
const Values kAll = {{"*", 1.0}};
// Within 2% of SmolLM2-135M's perplexity (research/skipping/README.md). Query, key and value stay whole: 0.7 cost 3%.
const Values kDefaultKeep = {{"ffn_down", 0.65}, {"ffn_gate", 0.85}, {"ffn_up", 0.85}, {"attn_output", 0.75}};

class Planner {
public:
    Planner(const SkipSettings &settings, const ModelNames &model, const std::vector<Skippable> &matrices)
        : settings_(settings), zeros_(model.architecture, model.tensors) {
        for (const Skippable &one : matrices) {
            by_name_[one.name] = &one;
        }
        for (const auto &[name, skip] : file() == nullptr ? decltype(SkipFile::inputs){} : file()->inputs) {
            if (!by_name_.contains(name)) {
                throw std::invalid_argument(file()->path + ": '" + name + "' is not by columns in " + model.path +
                                            "; make it again");
            }
        }
    }

    // None when all inputs are computed with.
    std::optional<PlannedGate> plan(const Names &group) const {
        PlannedGate gate{.group = group};
        gate.spec.n_in = by_name_.at(group.front())->n_in;
        gate.spec.prompts = settings_.skip_prompt;
        int block = 1;
        for (const std::string &name : group) {
            block = std::max(block, by_name_.at(name)->block);
        }
        bool scored = add_kwta(gate, block);
        add_pack(gate);
        scored |= add_event(gate, block);
        GateSpec &spec = gate.spec;
        if (settings_.zeros && zeros_.has(group.front()) && !spec.pack.enabled && !spec.event.enabled) {
            spec.pack = {.enabled = true, .zeros = true};
        }
        if (!spec.kwta.enabled && !spec.pack.enabled && !spec.event.enabled) {
            return std::nullopt;
        }
        if (scored) {
            gate.norms = norms(group);
        }
        return gate;
    }

private:
    const SkipFile *file() const { return settings_.kwta && settings_.kwta->file ? &*settings_.kwta->file : nullptr; }

    // Of an input's weights in all matrices of the group.
    std::vector<float> norms(const Names &group) const {
        std::vector<float> sums;
        for (const std::string &name : group) {
            const std::vector<float> own = by_name_.at(name)->norms();
            sums.resize(own.size());
            for (size_t i = 0; i < own.size(); ++i) {
                sums[i] += own[i] * own[i];
            }
        }
        for (float &sum : sums) {
            sum = std::sqrt(sum);
        }
        return sums;
    }

    // Whether the scores of its inputs have norms.
    bool add_kwta(PlannedGate &gate, int block) const {
        if (!settings_.kwta || !settings_.kwta->of_inputs()) {
            return false;
        }
        const KwtaSettings &s = *settings_.kwta;
        KwtaSpec &kwta = gate.spec.kwta;
        bool wina = s.wina;
        if (file() != nullptr) {
            const auto named = std::find_if(gate.group.begin(), gate.group.end(),
                                            [&](const std::string &name) { return file()->inputs.contains(name); });
            if (named == gate.group.end() || !in_target(gate.group, s.target)) {
                return false;
            }
            const SkipFile::Skip &skip = file()->inputs.at(*named);
            if (s.threshold && !skip.threshold) {
                throw std::invalid_argument(file()->path + ": has no threshold for '" + gate.group.front() +
                                            "'; make it again, or use topk");
            }
            kwta.keep = skip.keep;
            kwta.threshold = s.threshold ? static_cast<float>(*skip.threshold) : kwta.threshold;
            wina = file()->wina;
        } else {
            const Values &values = s.k_abs > 0 ? kAll : s.k ? *s.k : kDefaultKeep;
            const std::optional<double> keep = value_of(gate.group, values, s.target);
            if (!keep) {
                return false;
            }
            kwta.keep = *keep;
        }
        if (s.threshold && block > 1) {
            throw std::invalid_argument("'" + gate.group.front() +
                                        "' is proc-sparse and skips blocks, which have no thresholds; use topk");
        }
        kwta.enabled = true;
        kwta.block = settings_.event && settings_.event->of_inputs() ? 1 : std::max(s.block, block);
        kwta.keep_count = std::min(s.k_abs, (gate.spec.n_in + kwta.block - 1) / kwta.block);
        kwta.duty = s.duty;
        kwta.temperature = static_cast<float>(s.temperature);
        kwta.renormalize = s.renormalize;
        if (s.gap_tol) {
            kwta.gap_every = s.gap_every;
            kwta.gap_tolerance = static_cast<float>(*s.gap_tol);
        }
        return wina;
    }

    void add_pack(PlannedGate &gate) const {
        if (!settings_.state_pack_mlp) {
            return;
        }
        const PackMlpSettings &s = *settings_.state_pack_mlp;
        const std::optional<double> eps = value_of(gate.group, s.eps, s.target);
        const std::optional<double> rho = value_of(gate.group, s.rho, s.target);
        if (eps && rho) {
            gate.spec.pack = {.enabled = true,
                              .ternary = s.ternary,
                              .eps = static_cast<float>(*eps),
                              .relative = static_cast<float>(s.relative),
                              .density = static_cast<float>(*rho),
                              .hysteresis = static_cast<float>(s.hysteresis),
                              .vector_popcount = s.popcnt,
                              .aggressive = s.aggressive};
        }
    }

    bool add_event(PlannedGate &gate, int block) const {
        if (!settings_.event || !settings_.event->of_inputs()) {
            return false;
        }
        const EventSettings &s = *settings_.event;
        const std::optional<double> theta = value_of(gate.group, s.theta(), s.target);
        if (!theta) {
            return false;
        }
        gate.spec.event =
            s.made(*theta, value_of(gate.group, s.topk, s.target).value_or(1.0), share(gate.group, s.target));
        gate.spec.event.early_checks = settings_.force ? 0 : kEarlyChecks;
        gate.spec.event.block = std::max(s.block, block);
        return !settings_.kwta || settings_.kwta->wina;
    }

    // Of the weights of all matrices in the target.
    double share(const Names &group, Target target) const {
        double own = 0.0, all = 0.0;
        for (const auto &[name, one] : by_name_) {
            const auto weights = static_cast<double>(one->n_out) * static_cast<double>(one->n_in);
            all += in_target({name}, target) ? weights : 0.0;
            own += std::find(group.begin(), group.end(), name) != group.end() ? weights : 0.0;
        }
        return own / all;
    }

    const SkipSettings &settings_;
    ZeroInputs zeros_;
    std::map<std::string, const Skippable *> by_name_;
};

std::vector<float> decoded_norms(const ColumnWeight &columns) {
    std::vector<float> norms;
    std::vector<float> column(static_cast<size_t>(columns.n_out));
    const float one = 1.0F;
    for (int32_t j = 0; j < columns.n_in; ++j) {
        columns_compute_active(columns, {.n = 1, .index = &j, .value = &one}, column.data());
        double squares = 0.0;
        for (const float value : column) {
            squares += static_cast<double>(value) * value;
        }
        norms.push_back(static_cast<float>(std::sqrt(squares)));
    }
    return norms;
}

std::vector<float> decoded_norms(const seeddelta_ctx &ctx) {
    std::vector<double> squares(static_cast<size_t>(ctx.n_in));
    std::vector<float> row(squares.size());
    for (int64_t o = 0; o < ctx.n_out; ++o) {
        seeddelta_dequantize(ctx, o, o + 1, row.data());
        for (size_t i = 0; i < row.size(); ++i) {
            squares[i] += static_cast<double>(row[i]) * row[i];
        }
    }
    std::vector<float> norms;
    std::transform(squares.begin(), squares.end(), std::back_inserter(norms),
                   [](double sum) { return static_cast<float>(std::sqrt(sum)); });
    return norms;
}

} // namespace

std::vector<float> input_norms(const CheckedWeight &weight) {
    if (!weight.is_column()) {
        return decoded_norms(weight.ctx());
    }
    const ColumnWeight &columns = weight.columns();
    const auto factor =
        static_cast<float>(columns.lane_code->deviation * std::sqrt(static_cast<double>(columns.n_out)));
    std::vector<float> norms(columns.input_scale, columns.input_scale + columns.n_in);
    for (float &norm : norms) {
        norm = std::abs(norm) * factor;
    }
    return norms;
}

Skippable Skippable::of(const std::string &name, const CheckedWeight &weight) {
    const seeddelta_ctx &ctx = weight.ctx();
    return {.name = name,
            .n_out = ctx.n_out,
            .n_in = ctx.n_in,
            .block = weight.is_column() ? 1 : static_cast<int>(ctx.residual_block),
            .by_column = weight.is_column(),
            .norms = [&weight] { return input_norms(weight); }};
}

Skippable Skippable::of(const std::string &name, const ColumnWeight &columns) {
    return {.name = name, .n_out = columns.n_out, .n_in = columns.n_in, .by_column = true, .norms = [&columns] {
                return decoded_norms(columns);
            }};
}

std::vector<PlannedGate> plan_gates(const SkipSettings &settings, const ModelNames &model,
                                    const std::vector<Skippable> &matrices,
                                    const std::unordered_set<std::string> &rows) {
    if (settings.skips() && matrices.empty()) {
        throw std::invalid_argument(model.path +
                                    ": kwta, state-pack of the MLP and events skip inputs of matrices in column "
                                    "layout, or proc-sparse ones, and it has none; build it with --layout column or "
                                    "--column-tensor");
    }
    const Planner planner(settings, model, matrices);
    std::vector<PlannedGate> gates;
    for (const bool by_column : {true, false}) {
        if (!by_column && !settings.skips()) {
            continue; // proc-sparse ones are not read by inputs just for zeros
        }
        Names names;
        std::unordered_set<std::string> others = rows;
        for (const Skippable &one : matrices) {
            if (one.by_column == by_column) {
                names.push_back(one.name);
            } else {
                others.insert(one.name);
            }
        }
        for (const Names &group : input_groups(names, others)) {
            if (std::optional<PlannedGate> gate = planner.plan(group)) {
                gates.push_back(std::move(*gate));
            }
        }
    }
    return gates;
}

} // namespace seeddelta
