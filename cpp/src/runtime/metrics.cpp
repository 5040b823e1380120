#include "runtime/metrics.hpp"

#include <unistd.h>

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

// The order of Counts.
constexpr const char *kNames[kCounters] = {
    "rewrites", "calls",       "own_calls",        "tokens",        "reused",         "prefetched", "rows",
    "experts",  "dense_calls", "nonfinite_events", "active_inputs", "skipped_inputs", "blocks"};
constexpr int kRewrites = 0, kOwnCalls = 2, kBlocks = 12;

std::string quoted(std::string_view text) {
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

std::map<std::string, uint64_t> named(const AttentionCounts &counts) {
    std::map<std::string, uint64_t> found;
    for (size_t i = 0; i < counts.size(); ++i) {
        found[std::string("attention.") + kAttentionNames[i]] = counts[i];
    }
    return found;
}

} // namespace

std::string ordinary_json(const AttentionCounts &counts) {
    std::string text;
    for (const auto &[name, value] : named(counts)) {
        text += (text.empty() ? "\n  \"" : ",\n  \"") + name + "\": " + std::to_string(value);
    }
    return quoted("ordinary models") + ": {" + text + "\n}";
}

std::string metrics_json(ServedModel &model, const Totals &totals) {
    std::map<std::string, uint64_t> found;
    std::map<std::string, uint64_t> kinds;
    for (const char *name : operator_names()) {
        kinds[name] = 0;
    }
    Counts sums{};
    uint64_t idle = 0, proc_weights = 0, statecells = 0, trims = 0, kept = 0, rows = 0;
    size_t at = 0;
    for (const RegisteredWeight &weight : model.registry().weights()) {
        const TensorDescription &d = model.served()[at];
        const Counts &counts = totals.weights[at++];
        for (int i = 0; i < kCounters; ++i) {
            sums[static_cast<size_t>(i)] += counts[static_cast<size_t>(i)];
        }
        idle += counts[kRewrites] == 0 ? 1 : 0;
        for (const char *name : weight.op->names()) {
            kinds[name] += counts[kOwnCalls];
        }
        statecells += d.base == BaseKind::none && d.residual == ResidualScheme::codebook_resid ? 1 : 0;
        if (d.residual == ResidualScheme::proc_sparse) {
            ++proc_weights;
            trims += d.trims;
            rows += static_cast<uint64_t>(d.n_out);
            kept += static_cast<uint64_t>(d.n_out * d.resid_k);
        }
    }
    if (model.own_attention()) {
        found = named(totals.attention);
    }
    found["seeddelta.weights"] = model.served().size();
    found["seeddelta.dense_weights"] = model.dense_weights();
    found["seeddelta.idle_weights"] = idle;
    found["seeddelta.file_bytes"] = model.file_bytes();
    found["seeddelta.nodes_seen"] = totals.nodes_seen;
    for (int i = 0; i < kCounters; ++i) {
        if (i != kOwnCalls) {
            found[std::string("seeddelta.") + kNames[i]] = sums[static_cast<size_t>(i)];
        }
    }
    found["statecells.weights"] = statecells;
    found["statecells.calls"] = kinds["statecells"];
    kinds.erase("statecells");
    for (const auto &[name, calls] : kinds) {
        found["seeddelta.calls." + name] = calls;
    }
    found["proc.enabled"] = proc_weights > 0 ? 1 : 0;
    found["proc.weights"] = proc_weights;
    found["proc.trims"] = trims;
    found["proc.calls"] = kinds["proc_sparse"];
    found["proc.blocks"] = sums[kBlocks];
    std::string text = quoted(model.path()) + ": {";
    for (const auto &[name, value] : found) {
        text += "\n  \"" + name + "\": " + std::to_string(value) + ",";
    }
    std::vector<Metric> more = skipping_metrics(model.options().skipping, totals.gates);
    more.insert(more.end(), totals.proof.begin(), totals.proof.end());
    for (const Metric &metric : more) {
        text += "\n  \"" + metric.name + "\": " + printed(metric) + ",";
    }
    const double fanout = rows > 0 ? static_cast<double>(kept) / static_cast<double>(rows) : 0.0;
    return text + "\n  \"proc.fanout\": " + printed({"", fanout}) + "\n}";
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
