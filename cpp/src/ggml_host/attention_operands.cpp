#include "ggml_host/attention_operands.hpp"

#include <optional>

namespace seeddelta {

// Type of a cache; none for one that we cannot read.
static std::optional<CacheType> cache_type(const GgmlAbi &abi, const void *tensor) {
    switch (abi.type_of(tensor)) {
    case kTypeF16:
        return CacheType::f16;
    case kTypeBF16:
        return CacheType::bf16;
    case kTypeQ8_0:
        return CacheType::q8_0;
    case kTypeQ4_0:
        return CacheType::q4_0;
    default:
        return std::nullopt;
    }
}

const char *misfit(const GgmlAbi &abi, const AttentionOperands &o) {
    const auto ne = [&](const void *t, int i) { return abi.ne_of(t, i); };
    const int channel = o.v_by_channel ? 1 : 0;
    const int position = o.v_by_channel ? 0 : 1;
    const auto known = [&](const void *t) {
        const std::optional<CacheType> type = cache_type(abi, t);
        return type && (!has_blocks(*type) || ne(t, 0) % kCacheBlock == 0);
    };
    if (!known(o.k) || !known(o.v) || (o.v_by_channel && abi.type_of(o.v) != kTypeF16)) {
        return "the cache is none of F16, BF16, Q8_0 and Q4_0";
    }
    const auto dense = [&](const void *t) {
        const CacheType type = *cache_type(abi, t);
        return abi.nb_of(t, 0) == cache_row_bytes(type, has_blocks(type) ? kCacheBlock : 1);
    };
    const int64_t streams = ne(o.q, 3);
    if (o.v_by_channel && (ne(o.q, 1) != 1 || streams != 1)) {
        return "several tokens are computed at once without flash attention";
    }
    if (ne(o.k, 0) % kLanes != 0 || ne(o.v, channel) % kLanes != 0 || ne(o.k, 0) > kLargestHead ||
        ne(o.v, channel) > kLargestHead) {
        return "a head is no multiple of 16 channels, or larger than 576";
    }
    const bool fits = abi.type_of(o.q) == kTypeF32 && ne(o.q, 0) == ne(o.k, 0) && ne(o.k, 3) == streams &&
                      ne(o.v, 3) == streams && ne(o.k, 1) == ne(o.v, position) && ne(o.k, 2) == ne(o.v, 2) &&
                      ne(o.k, 2) > 0 && ne(o.q, 2) % ne(o.k, 2) == 0 && abi.nb_of(o.q, 0) == 4 &&
                      abi.nb_of(o.q, 1) % 4 == 0 && abi.nb_of(o.q, 2) % 4 == 0 && abi.nb_of(o.q, 3) % 4 == 0 &&
                      dense(o.k) && dense(o.v);
    const auto mask_type = [&] { return abi.type_of(o.mask); };
    const auto mask_item = [&] { return mask_type() == kTypeF16 ? 2 : 4; };
    const bool mask_fits =
        o.mask == nullptr ||
        ((mask_type() == kTypeF16 || mask_type() == kTypeF32) && abi.nb_of(o.mask, 0) == mask_item() &&
         abi.nb_of(o.mask, 1) % mask_item() == 0 && abi.nb_of(o.mask, 3) % mask_item() == 0 &&
         ne(o.mask, 0) >= ne(o.k, 1) && ne(o.mask, 1) >= ne(o.q, 1) && ne(o.mask, 2) == 1 && ne(o.mask, 3) == streams);
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
    p.n_query = abi.ne_of(o.q, 1);
    p.n_stream = abi.ne_of(o.q, 3);
    p.q_stride = abi.nb_of(o.q, 2) / 4;
    p.q_query = abi.nb_of(o.q, 1) / 4;
    p.q_stream = abi.nb_of(o.q, 3) / 4;
    p.k_type = *cache_type(abi, o.k);
    p.v_type = *cache_type(abi, o.v);
    p.k = static_cast<const uint8_t *>(abi.data_of(o.k));
    p.v = static_cast<const uint8_t *>(abi.data_of(o.v));
    p.k_row = abi.nb_of(o.k, 1);
    p.k_head = abi.nb_of(o.k, 2);
    p.v_row = abi.nb_of(o.v, 1);
    p.v_head = abi.nb_of(o.v, 2);
    p.k_stream = abi.nb_of(o.k, 3);
    p.v_stream = abi.nb_of(o.v, 3);
    p.v_by_channel = o.v_by_channel;
    if (o.mask != nullptr) {
        const int64_t item = abi.type_of(o.mask) == kTypeF16 ? 2 : 4;
        p.mask_query = abi.nb_of(o.mask, 1) / item;
        p.mask_stream = abi.nb_of(o.mask, 3) / item;
    }
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
