#include "ggml_host/attention_abi.hpp"

#include "ggml_host/prober.hpp"

namespace seeddelta {

const std::vector<std::string> &attention_required_symbols() {
    static const std::vector<std::string> names = {"ggml_flash_attn_ext",
                                                   "ggml_flash_attn_ext_add_sinks",
                                                   "ggml_flash_attn_ext_set_prec",
                                                   "ggml_soft_max_ext",
                                                   "ggml_set_rows",
                                                   "ggml_view_1d",
                                                   "ggml_reshape_1d",
                                                   "ggml_permute",
                                                   "ggml_transpose",
                                                   "ggml_scale",
                                                   "ggml_tanh",
                                                   "ggml_soft_max_add_sinks"};
    return names;
}

namespace {

constexpr int64_t kDim = 32;
constexpr float kParams[3] = {0.1875F, 3.5F, 29.0F}; // any recognizable values

// Makes nodes of attention, and looks at what they have where.
struct AttentionProbe {
    const Symbols &symbols;
    const GgmlAbi &abi;
    const Prober p;
    void *mask = p.tensor(kTypeF16, 64, 64);
    void *sinks = p.tensor(kTypeF32, 4, 1);
    AttentionAbi found = {};

    int32_t number_of(const void *node, const char *name) const {
        const int32_t op = abi.op_of(node);
        const char *is = op > 0 && op < 1024 ? abi.op_name(op) : nullptr;
        if (is == nullptr || std::string(is) != name) {
            fail(std::string("a tensor of ggml's function for ") + name + " is not one");
        }
        return op;
    }

    NodeForm form_of(const void *node, int sources, size_t parameters) const {
        NodeForm form;
        const auto *bytes = static_cast<const uint8_t *>(node);
        form.bytes.assign(bytes + abi.params_begin(), bytes + abi.src);
        form.known.assign(form.bytes.size(), 0);
        form.sources = sources;
        for (size_t o = abi.params; o < abi.params + 4 * parameters; ++o) {
            form.known[o - abi.params_begin()] = 1;
        }
        for (size_t o = abi.flags; o < abi.flags + 4 && o < abi.src; ++o) {
            form.known[o - abi.params_begin()] = 1;
        }
        return form;
    }

    void flash() {
        void *q = p.tensor(kTypeF32, kDim, 1, 4);
        void *k = p.tensor(kTypeF16, kDim, 64, 2);
        void *v = p.tensor(kTypeF16, kDim, 64, 2);
        void *attention =
            p.checked(symbols.get<void *(*)(void *, void *, void *, void *, void *, float, float, float)>(
                          "ggml_flash_attn_ext")(p.context(), q, k, v, mask, kParams[0], kParams[1], kParams[2]),
                      "a tensor of ggml_flash_attn_ext");
        symbols.get<void (*)(void *, void *)>("ggml_flash_attn_ext_add_sinks")(attention, sinks);
        found.op_flash_attn_ext = number_of(attention, "FLASH_ATTN_EXT");
        void *const sources[5] = {q, k, v, mask, sinks};
        if (!bytes_at(attention, abi.params, kParams, sizeof(kParams)) ||
            !bytes_at(attention, abi.src, sources, sizeof(sources)) || abi.type_of(attention) != kTypeF32 ||
            abi.ne_of(attention, 0) != kDim || abi.ne_of(attention, 1) != 4 || abi.ne_of(attention, 2) != 1) {
            fail("ggml_flash_attn_ext stores its parameters or sources in an unknown way");
        }

        found.form_flash = form_of(attention, 5, 3);
        constexpr int32_t kPrecise = 10; // GGML_PREC_F32
        symbols.get<void (*)(void *, int32_t)>("ggml_flash_attn_ext_set_prec")(attention, kPrecise);
        found.form_flash.hint = abi.params + sizeof(kParams);
        if (GgmlAbi::read<int32_t>(attention, found.form_flash.hint) != kPrecise) {
            fail("ggml_flash_attn_ext_set_prec stores the precision in an unknown way");
        }
        for (size_t o = 0; o < 4; ++o) {
            found.form_flash.known[found.form_flash.hint + o - abi.params_begin()] = 1;
        }
    }

    void soft_max() {
        void *scores = p.tensor(kTypeF32, 64, 1, 4);
        void *weights = p.checked(symbols.get<void *(*)(void *, void *, void *, float, float)>("ggml_soft_max_ext")(
                                      p.context(), scores, mask, kParams[0], kParams[1]),
                                  "a tensor of ggml_soft_max_ext");
        symbols.get<void (*)(void *, void *)>("ggml_soft_max_add_sinks")(weights, sinks);
        found.op_soft_max = number_of(weights, "SOFT_MAX");
        void *const of_weights[3] = {scores, mask, sinks};
        if (!bytes_at(weights, abi.params, kParams, 2 * sizeof(float)) ||
            !bytes_at(weights, abi.src, of_weights, sizeof(of_weights))) {
            fail("ggml_soft_max_ext stores its parameters or sources in an unknown way");
        }
        found.form_soft_max = form_of(weights, 3, 2);
        const void *scaled = p.checked(
            symbols.get<void *(*)(void *, void *, float)>("ggml_scale")(p.context(), scores, kParams[2]), "ggml_scale");
        found.op_scale = number_of(scaled, "SCALE");
        const float factor_and_offset[2] = {kParams[2], 0.0F};
        if (!bytes_at(scaled, abi.params, factor_and_offset, sizeof(factor_and_offset)) ||
            abi.src_of(scaled, 0) != scores) {
            fail("ggml_scale stores its parameters or sources in an unknown way");
        }
        found.form_scale = form_of(scaled, 1, 2);
        const void *unary = p.checked(symbols.get<void *(*)(void *, void *)>("ggml_tanh")(p.context(), scores),
                                      "a tensor of ggml_tanh");
        found.op_unary = number_of(unary, "UNARY");
        found.unary_tanh = GgmlAbi::read<int32_t>(unary, abi.params);
        found.form_tanh = form_of(unary, 1, 1);
    }

    void set_rows() {
        void *rows = p.tensor(kTypeF32, kDim, 3);
        void *index = p.tensor(kTypeI64, 3, 1);
        void *cache = p.tensor(kTypeF16, kDim, 64);
        const void *set = p.checked(
            symbols.get<void *(*)(void *, void *, void *, void *)>("ggml_set_rows")(p.context(), cache, rows, index),
            "a tensor of ggml_set_rows");
        found.op_set_rows = number_of(set, "SET_ROWS");
        found.set_rows_index = abi.src_of(set, 0) == index ? 0 : abi.src_of(set, 1) == index ? 1 : 2;
        if (abi.src_of(set, static_cast<int>(found.set_rows_index)) != index ||
            abi.data_of(set) != abi.data_of(cache) || abi.nb_of(set, 1) != abi.nb_of(cache, 1)) {
            fail("ggml_set_rows stores its sources in an unknown way");
        }
    }

    void views() {
        void *cache = p.tensor(kTypeF16, kDim, 64);
        const auto unary = [&](const char *function, const char *name, auto... arguments) {
            using F = void *(*)(void *, void *, decltype(arguments)...);
            return number_of(p.checked(symbols.get<F>(function)(p.context(), cache, arguments...), function), name);
        };
        found.op_view = unary("ggml_view_1d", "VIEW", int64_t{8}, size_t{0});
        found.op_reshape = unary("ggml_reshape_1d", "RESHAPE", kDim * 64);
        found.op_permute = unary("ggml_permute", "PERMUTE", 0, 2, 1, 3);
        found.op_transpose = unary("ggml_transpose", "TRANSPOSE");
    }
};

} // namespace

AttentionAbi probe_attention(const std::map<std::string, uintptr_t> &table, const GgmlAbi &abi) {
    const Symbols symbols(table);
    for (const std::string &name : attention_required_symbols()) {
        symbols.get<uintptr_t>(name.c_str());
    }
    AttentionProbe probe{.symbols = symbols, .abi = abi, .p = Prober(symbols)};
    probe.flash();
    probe.soft_max();
    probe.set_rows();
    probe.views();
    return probe.found;
}

} // namespace seeddelta
