#include "ggml_host/attention_operands.hpp"

namespace seeddelta {

static CacheType cache_type(const GgmlAbi &abi, const void *tensor) {
    return abi.type_of(tensor) == kTypeF16 ? CacheType::f16 : CacheType::q8_0;
}

const char *misfit(const GgmlAbi &abi, const AttentionOperands &o) {
    const auto ne = [&](const void *t, int i) { return abi.ne_of(t, i); };
    const int channel = o.v_by_channel ? 1 : 0;
    const int position = o.v_by_channel ? 0 : 1;
    const auto known = [&](const void *t) {
        const int32_t type = abi.type_of(t);
        return type == kTypeF16 || (type == kTypeQ8_0 && ne(t, 0) % kQ8Block == 0);
    };
    if (!known(o.k) || !known(o.v) || (o.v_by_channel && abi.type_of(o.v) != kTypeF16)) {
        return "the cache is neither F16 nor Q8_0";
    }
    const auto dense = [&](const void *t) { return abi.nb_of(t, 0) == (abi.type_of(t) == kTypeF16 ? 2 : kQ8Bytes); };
    if (ne(o.q, 3) != 1 || ne(o.k, 3) != 1 || ne(o.v, 3) != 1) {
        return "several sequences are computed at once";
    }
    if (ne(o.k, 0) % kLanes != 0 || ne(o.v, channel) % kLanes != 0 || ne(o.k, 0) > kLargestKey ||
        ne(o.v, channel) > kLargestKey) {
        return "a head is no multiple of 16 channels, or larger than 512";
    }
    const bool fits = abi.type_of(o.q) == kTypeF32 && ne(o.q, 0) == ne(o.k, 0) && ne(o.q, 1) == 1 &&
                      ne(o.k, 1) == ne(o.v, position) && ne(o.k, 2) == ne(o.v, 2) && ne(o.k, 2) > 0 &&
                      ne(o.q, 2) % ne(o.k, 2) == 0 && abi.nb_of(o.q, 0) == 4 && abi.nb_of(o.q, 2) % 4 == 0 &&
                      dense(o.k) && dense(o.v);
    const auto mask_type = [&] { return abi.type_of(o.mask); };
    const bool mask_fits =
        o.mask == nullptr || ((mask_type() == kTypeF16 || mask_type() == kTypeF32) &&
                              abi.nb_of(o.mask, 0) == (mask_type() == kTypeF16 ? 2 : 4) &&
                              ne(o.mask, 0) >= ne(o.k, 1) && ne(o.mask, 2) == 1 && ne(o.mask, 3) == 1);
    const bool sinks_fit = o.sinks == nullptr || (abi.type_of(o.sinks) == kTypeF32 && abi.nb_of(o.sinks, 0) == 4 &&
                                                  ne(o.sinks, 0) == ne(o.q, 2));
    return fits && mask_fits && sinks_fit ? nullptr : "its operands have an unexpected type or layout";
}

AttentionProblem problem_of(const GgmlAbi &abi, const AttentionOperands &o) {
    AttentionProblem p;
    p.n_head = abi.ne_of(o.q, 2);
    p.n_kv_head = abi.ne_of(o.k, 2);
    p.dim_k = abi.ne_of(o.k, 0);
    p.dim_v = abi.ne_of(o.v, o.v_by_channel ? 1 : 0);
    p.n_kv = abi.ne_of(o.k, 1);
    p.q = static_cast<const float *>(abi.data_of(o.q));
    p.q_stride = abi.nb_of(o.q, 2) / 4;
    p.k_type = cache_type(abi, o.k);
    p.v_type = cache_type(abi, o.v);
    p.k = static_cast<const uint8_t *>(abi.data_of(o.k));
    p.v = static_cast<const uint8_t *>(abi.data_of(o.v));
    p.k_row = abi.nb_of(o.k, 1);
    p.k_head = abi.nb_of(o.k, 2);
    p.v_row = abi.nb_of(o.v, 1);
    p.v_head = abi.nb_of(o.v, 2);
    p.v_by_channel = o.v_by_channel;
    if (o.mask != nullptr && abi.type_of(o.mask) == kTypeF16) {
        p.mask = static_cast<const uint16_t *>(abi.data_of(o.mask));
    } else if (o.mask != nullptr) {
        p.mask32 = static_cast<const float *>(abi.data_of(o.mask));
    }
    p.sinks = o.sinks == nullptr ? nullptr : static_cast<const float *>(abi.data_of(o.sinks));
    p.scale = o.scale;
    p.max_bias = o.max_bias;
    p.softcap = o.softcap;
    return p;
}

} // namespace seeddelta
