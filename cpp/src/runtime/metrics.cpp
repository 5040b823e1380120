#include "runtime/metrics.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <locale>
#include <map>
#include <sstream>
#include <string_view>

#include "gguf/error.hpp"

namespace seeddelta {

namespace {

Metric whole(std::string name, uint64_t value) {
    return {std::move(name), static_cast<double>(value), true};
}

std::string json_string(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < ' ') {
            char code[8];
            static_cast<void>(std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c)));
            out += code;
        } else {
            out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
        }
    }
    return out + "\"";
}

std::string printed(const Metric &metric) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(metric.whole ? 0 : 17);
    out << (metric.whole ? std::fixed : std::defaultfloat) << metric.value;
    return out.str();
}

// `"name": {…}`
std::string object(std::string_view name, const std::vector<Metric> &metrics) {
    std::string text;
    for (const Metric &metric : metrics) {
        text += (text.empty() ? "\n  " : ",\n  ") + json_string(metric.name) + ": " + printed(metric);
    }
    return json_string(name) + ": {" + text + "\n}";
}

// Of weights with the residual proc_sparse.
void add_proc(std::vector<Metric> &found, const std::vector<TensorDescription> &served, uint64_t calls,
              uint64_t blocks) {
    uint64_t weights = 0, trims = 0, kept = 0, rows = 0;
    for (const TensorDescription &d : served) {
        if (d.residual == ResidualScheme::proc_sparse) {
            ++weights;
            trims += d.trims;
            rows += static_cast<uint64_t>(d.n_out * d.matrices());
            kept += static_cast<uint64_t>(d.n_out * d.matrices() * d.resid_k);
        }
    }
    found.insert(found.end(), {whole("proc.enabled", weights > 0 ? 1 : 0),
                               whole("proc.weights", weights),
                               {"proc.fanout", rows > 0 ? static_cast<double>(kept) / static_cast<double>(rows) : 0.0},
                               whole("proc.trims", trims),
                               whole("proc.calls", calls),
                               whole("proc.blocks", blocks)});
}

} // namespace

static std::vector<Metric> model_metrics(ServedModel &model, const Totals &totals) {
    std::map<std::string_view, uint64_t> kinds;
    Counters<WeightCount> sums;
    uint64_t idle = 0;
    size_t at = 0;
    for (const RegisteredWeight &weight : model.registry().weights()) {
        const Counters<WeightCount> &counts = totals.weights[at++];
        sums += counts;
        idle += counts[WeightCount::rewrites] == 0 ? 1 : 0;
        for (const char *name : weight.op->names()) {
            kinds[name] += counts[WeightCount::own_calls];
        }
    }
    std::vector<Metric> found = {whole("seeddelta.weights", at),
                                 whole("seeddelta.dense_weights", model.dense().size()),
                                 whole("seeddelta.idle_weights", idle),
                                 whole("seeddelta.file_bytes", model.file_bytes()),
                                 whole("seeddelta.nodes_seen", totals.nodes_seen),
                                 whole("seeddelta.self_tests", static_cast<uint64_t>(model.ggml().self_tests()))};
    for (size_t i = 1; i < sums.kSize; ++i) {
        found.push_back(whole(std::string("seeddelta.") + kWeightCounts[i], sums.at(i)));
    }
    const auto statecells =
        std::count_if(model.served().begin(), model.served().end(), [](const auto &d) { return d.is_statecells(); });
    found.push_back(whole("statecells.weights", static_cast<uint64_t>(statecells)));
    found.push_back(whole("statecells.calls", kinds["statecells"]));
    for (const std::string_view name : operator_names()) {
        if (name != "statecells") {
            found.push_back(whole("seeddelta.calls." + std::string(name), kinds[name]));
        }
    }
    add_proc(found, model.served(), kinds["proc_sparse"], sums[WeightCount::blocks]);
    const std::vector<Metric> skipping = skipping_metrics(model.options().skipping, totals.gates);
    found.insert(found.end(), skipping.begin(), skipping.end());
    return found;
}

std::vector<Metric> all_metrics(ServedModel *model, const Totals &totals) {
    std::vector<Metric> found;
    if (model != nullptr) {
        found = model_metrics(*model, totals);
    }
    const bool of_both = model != nullptr && model->options().skipping.state_pack_mlp;
    const std::vector<Metric> attention = totals.attention.metrics(of_both);
    found.insert(found.end(), attention.begin(), attention.end());
    return found;
}

std::string metrics_json(ServedModel *model, Totals totals) {
    if (!totals.attention.settings && (model == nullptr || model->options().attention != AttentionMode::llama)) {
        totals.attention.settings = Options().attention_settings(); // it did nothing yet
    }
    std::vector<Metric> found = all_metrics(model, totals);
    found.insert(found.end(), totals.proof.begin(), totals.proof.end());
    return object(model == nullptr ? "ordinary models" : model->path(), found);
}

void write_file(const std::string &path, const std::string &text) {
    const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    out.close();
    if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
        const std::string why = std::strerror(errno);
        static_cast<void>(std::remove(temporary.c_str()));
        throw ModelFileError(path + ": cannot be written (" + why + ")");
    }
}

} // namespace seeddelta
