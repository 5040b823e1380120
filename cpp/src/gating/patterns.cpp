#include "gating/patterns.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace seeddelta {

namespace {

using Texts = std::initializer_list<std::string_view>;

// llama.cpp's architectures with LLM_FFN_RELU or LLM_FFN_RELU_SQR, and those with a ReLU of their own (RWKV)
constexpr std::string_view kRelu[] = {"nemotron", "nemotron_h", "nemotron_h_moe", "arcee", "plm",
                                      "jais2",    "t5",         "t5encoder",      "rwkv6", "rwkv7"};

// What names of tensors that are no matrices have in them, as shell patterns.
// clang-format off
constexpr std::string_view kNoMatrix[] = {
    "norm.weight", "norm_[0-9].weight", "norm_exps.weight", "exp_probs", "ffn_gate_inp", "ffn_gate_tid2eid",
    "altup_router", "altup_predict", "altup_correct", "position_embd", "token_types", "conv1d", "shortconv.conv.",
    "indexer.[kq]_proj", "attn_rel_b", "attn_sinks", "rope_f", "layer_output_scale", "attn_rot_embd", "time_mix_first",
    "time_mix_lerp", "time_mix_ln", "time_mix_k_[ka]", "time_mix_r_k", "time_mix_[wva][0-2]", "time_mix_g[12]",
    "time_mix_decay", "channel_mix_lerp", "ssm_[ad].", "_tokens_ordering",
};
// clang-format on

bool among(std::string_view text, Texts texts) {
    return std::find(texts.begin(), texts.end(), text) != texts.end();
}

bool begins(std::string_view text, Texts beginnings) {
    return std::any_of(beginnings.begin(), beginnings.end(), [&](auto one) { return text.starts_with(one); });
}

std::string_view role_of(std::string_view matrix) {
    if (matrix.ends_with("_exps") || matrix.ends_with("_chexps")) {
        return "experts";
    }
    if (matrix.ends_with("_shexp")) {
        return "shared";
    }
    if (among(matrix, {"attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b"})) {
        return "mla";
    }
    if (begins(matrix, {"ssm_", "shortconv.", "time_mix_", "channel_mix_"})) {
        return "ssm";
    }
    return matrix.starts_with("ffn_") ? "ffn" : matrix.starts_with("attn_") ? "attn" : "other";
}

bool in_group(std::string_view role, std::string_view group) {
    return among(group, {"full", "all", role}) || (group == "ffn" && among(role, {"experts", "shared"})) ||
           (group == "attn" && role == "mla");
}

// `set` is what is between [ and ].
bool in_set(std::string_view set, char c) {
    const bool negated = set.starts_with('!');
    set.remove_prefix(negated ? 1 : 0);
    bool found = false;
    for (size_t i = 0; i < set.size(); ++i) {
        const bool range = i + 2 < set.size() && set[i + 1] == '-';
        found |= range ? set[i] <= c && c <= set[i + 2] : set[i] == c;
        i += range ? 2 : 0;
    }
    return found != negated;
}

} // namespace

bool fits_pattern(std::string_view pattern, std::string_view text) {
    while (!pattern.empty()) {
        const char c = pattern.front();
        if (c == '*') {
            for (size_t i = 0; i <= text.size(); ++i) {
                if (fits_pattern(pattern.substr(1), text.substr(i))) {
                    return true;
                }
            }
            return false;
        }
        if (text.empty()) {
            return false;
        }
        const size_t end = c == '[' ? pattern.find(']', pattern.substr(1).starts_with('!') ? 3 : 2) : pattern.npos;
        const bool set = end != std::string_view::npos;
        if (set ? !in_set(pattern.substr(1, end - 1), text.front()) : c != '?' && c != text.front()) {
            return false;
        }
        pattern.remove_prefix(set ? end + 1 : 1);
        text.remove_prefix(1);
    }
    return text.empty();
}

bool is_matrix(std::string_view name) {
    const auto has = [&](std::string_view part) { return fits_pattern("*" + std::string(part) + "*", name); };
    return name.ends_with(".weight") && !fits_pattern("blk.*.ffn.*", name) &&
           !begins(name, {"posnet.", "convnext.", "v.", "mm.", "a.", "s.", "t."}) &&
           std::none_of(std::begin(kNoMatrix), std::end(kNoMatrix), has);
}

std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
    constexpr std::string_view kBegin = "blk.", kEnd = ".weight";
    const size_t dot = name.find_first_not_of("0123456789", kBegin.size());
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || dot == std::string_view::npos || dot == kBegin.size() ||
        name[dot] != '.' || dot + 1 + kEnd.size() >= name.size()) {
        return {};
    }
    return {name.substr(0, dot + 1), name.substr(dot + 1, name.size() - kEnd.size() - dot - 1)};
}

bool is_named(std::string_view matrix, std::string_view target) {
    return matrix == target || in_group(role_of(matrix), target);
}

bool in_target(const Names &group, Target target) {
    return std::all_of(group.begin(), group.end(), [&](const std::string &name) {
        const std::string_view matrix = split_name(name).second;
        return !matrix.empty() && target != Target::kv &&
               (target == Target::both || in_group(role_of(matrix), target == Target::mlp ? "ffn" : "attn"));
    });
}

std::optional<double> value_of(const Names &group, const Values &values, Target target) {
    std::optional<double> found;
    if (!in_target(group, target)) {
        return found;
    }
    for (const auto &[pattern, value] : values) {
        for (const std::string &name : group) {
            const std::string_view matrix = split_name(name).second;
            if (is_named(matrix, pattern) || fits_pattern(pattern, name)) {
                found = value;
            }
        }
    }
    return found;
}

std::vector<Names> input_groups(const Names &matrices, const std::unordered_set<std::string> &rows) {
    static const std::vector<Names> shared = {
        {"attn_q", "attn_k", "attn_v"}, {"ffn_gate", "ffn_up"}, {"ffn_gate_shexp", "ffn_up_shexp"}};
    std::unordered_set<std::string> left(matrices.begin(), matrices.end());
    std::vector<Names> groups;
    for (const std::string &name : matrices) {
        if (!left.contains(name)) {
            continue;
        }
        const auto [layer, matrix] = split_name(name);
        Names members, named = {name};
        for (const Names &one : shared) {
            if (std::find(one.begin(), one.end(), matrix) != one.end()) {
                named.clear();
                for (const std::string &other : one) {
                    named.push_back(std::string(layer) + other + ".weight");
                }
            }
        }
        std::copy_if(named.begin(), named.end(), std::back_inserter(members),
                     [&](const std::string &one) { return left.erase(one) > 0; });
        if (std::any_of(named.begin(), named.end(), [&](const std::string &one) { return rows.contains(one); })) {
            for (const std::string &member : members) {
                groups.push_back({member});
            }
        } else {
            groups.push_back(members);
        }
    }
    return groups;
}

ZeroInputs::ZeroInputs(std::string_view architecture, const Names &names) {
    constexpr std::string_view kGate = ".ffn_gate.";
    if (std::find(std::begin(kRelu), std::end(kRelu), architecture) == std::end(kRelu)) {
        return;
    }
    for (const std::string &name : names) {
        if (name.ends_with(".ffn_down.weight") || name.ends_with(".channel_mix_value.weight")) {
            found_.insert(name);
        }
    }
    for (std::string name : names) {
        if (const size_t at = name.find(kGate); at != std::string::npos) {
            found_.erase(name.replace(at, kGate.size(), ".ffn_down."));
        }
    }
}

} // namespace seeddelta
