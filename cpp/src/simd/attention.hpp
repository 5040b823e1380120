// Attention of one token (simd/attention_kernels.hpp), for any xsimd architecture. `Ops` has what xsimd has no word
// for:
//   half(p): as many float16 as a register has floats, widened   words(p), bytes(p): the same of int16, int8
//   half_one(h): one float16                                     sum4(a, b, c, d, out): the folded sums of four Lanes
//   fused(a, b, c): a * b + c, rounded once
//   kValues: registers of channels whose sums are kept at once    kRegisters: how many there are
// Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/attention_bits.hpp"
#include "simd/attention_products.hpp"

namespace seeddelta {
namespace {

// Scores of four keys at a time: they are widened once and multiplied with every head's query. Rows lie apart, so that
// the processor does not see what comes next.
template <class Arch, class Ops, CacheType kType, int64_t kDim>
void query_keys(const AttentionTask &t) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    constexpr int64_t ahead = 16;              // keys
    constexpr int64_t registers = kDim / size; // of a key; those of four keys may stay where they are
    constexpr bool held = kDim != 0 && 4 * registers + 12 <= Ops::kRegisters;
    const int64_t dim = kDim == 0 ? t.dim_k : kDim;
    float *wide = four_rows(t);
    const int64_t k_bytes = cache_row_bytes(kType, dim);
    // values to prefetch here: none when they were prefetched during the previous chunk
    const bool fetched = t.next_v != nullptr || t.negligible > 0.0F || t.v_by_channel;
    const int64_t v_bytes = fetched ? 0 : cache_row_bytes(t.v_type, t.dim_v);
    constexpr int kCount = Lanes<Arch>::kCount;
    // Sums of the previous head. They are folded after the products of the next one, which need not wait for them.
    F last[4 * kCount];
    unrolled<4 * kCount>([&](int s) SEEDDELTA_INLINE_LAMBDA { last[s] = F(0.0F); });
    float *last_out = t.scratch;
    for (int64_t i = 0; i < t.n; i += 4) {
        F four[held ? 4 * registers : 1];
        unrolled<4>([&](int key) SEEDDELTA_INLINE_LAMBDA {
            const int64_t row = t.rows[i + key < t.n ? i + key : t.n - 1];
            if (i + key + ahead < t.n) {
                prefetch(t.k + t.rows[i + key + ahead] * t.k_stride, k_bytes);
            }
            prefetch(t.v + row * t.v_stride, v_bytes);
            if (t.next_k != nullptr) {
                prefetch_next(t.next_k + (i + key) * k_bytes, k_bytes);
            }
            const uint8_t *k = t.k + row * t.k_stride;
            if constexpr (held) {
                unrolled<registers>([&](int r) SEEDDELTA_INLINE_LAMBDA {
                    four[key * registers + r] = channels<Ops, kType>(k, r * size);
                });
            } else {
                for (int64_t d = 0; d < dim; d += size) {
                    channels<Ops, kType>(k, d).store_unaligned(wide + key * dim + d);
                }
            }
        });
        for (int64_t head = 0; head < t.heads; ++head) {
            // what is written behind the last key is overwritten with no score below
            float *out = t.scratch + head * kAttentionChunk + i;
            if constexpr (held) {
                F sum[4 * kCount];
                held_products<Arch, Ops, registers>(t.q + head * dim, four, sum);
                Ops::sum4(last, last + kCount, last + 2 * kCount, last + 3 * kCount, last_out);
                unrolled<4 * kCount>([&](int s) SEEDDELTA_INLINE_LAMBDA { last[s] = sum[s]; });
                last_out = out;
            } else {
                four_products<Arch, Ops>(t.q + head * dim, wide, dim, dim, out);
            }
        }
    }
    if constexpr (held) {
        Ops::sum4(last, last + kCount, last + 2 * kCount, last + 3 * kCount, last_out);
    }
}

// A head's scores as the softmax takes them, up to a multiple of kLanes, which is at most kAttentionChunk. Returns the
// largest.
template <class Arch>
float finish_scores(const AttentionTask &t, int64_t head) {
    float *score = t.scratch + head * kAttentionChunk;
    if (t.given != nullptr) {
        for (int64_t i = 0; i < t.n; ++i) {
            score[i] = t.given[head * kAttentionChunk + i];
        }
    }
    const int64_t end = (t.n + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = t.n; i < end; ++i) {
        score[i] = kNoScore;
    }
    if (t.softcap != 0.0F) {
        for (int64_t i = 0; i < t.n; ++i) {
            score[i] = t.softcap * tanh_defined(score[i]);
        }
    }
    if (t.bias != nullptr) {
        for (int64_t i = 0; i < t.n; ++i) {
            score[i] = score[i] + t.slope[head] * t.bias[i];
        }
    }
    return largest_of<Arch>(score, end);
}

// Softmax within the chunk: scores become weights, and t.partial gets their largest and their sum.
template <class Arch, class Ops>
void weigh(const AttentionTask &t) {
    const int64_t stride = 2 + t.dim_v;
    for (int64_t head = 0; head < t.heads; ++head) { // of all heads first: one does not wait for another
        t.partial[head * stride] = finish_scores<Arch>(t, head);
    }
    for (int64_t head = 0; head < t.heads; ++head) {
        float *partial = t.partial + head * stride;
        const float sum =
            weights_of<Arch, Ops>(t.scratch + head * kAttentionChunk, (t.n + kLanes - 1) / kLanes * kLanes, partial[0]);
        partial[1] = t.n > 0 ? sum : 0.0F; // without a score, exp(-inf + inf) is no number
    }
}

// Sums of weight times value for kHeads heads and kRegisters registers of channels from d on.
template <class Arch, class Ops, CacheType kType, int kHeads, int kRegisters>
SEEDDELTA_INLINE void sum_values(const AttentionTask &t, int64_t dim, int64_t head, int64_t d, const int32_t *index,
                                 int64_t n) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    F sum[kHeads][kRegisters];
    for (auto &of_head : sum) {
        for (F &one : of_head) {
            one = F(0.0F);
        }
    }
    const float *weight = t.scratch + head * kAttentionChunk;
    const int64_t bytes = cache_row_bytes(kType, dim);
    const uint8_t *next = head == 0 && d == 0 ? t.next_v : nullptr;
    for (int64_t j = 0; j < n; ++j) {
        const int64_t i = index[j];
        const uint8_t *v = t.v + t.rows[i] * t.v_stride;
        if (next != nullptr) {
            prefetch_next(next + j * bytes, bytes);
        }
        F value[kRegisters];
        for (int r = 0; r < kRegisters; ++r) {
            value[r] = channels<Ops, kType>(v, d + r * size);
        }
        for (int h = 0; h < kHeads; ++h) {
            const F p(weight[h * kAttentionChunk + i]);
            for (int r = 0; r < kRegisters; ++r) {
                sum[h][r] = Ops::fused(p, value[r], sum[h][r]);
            }
        }
    }
    for (int h = 0; h < kHeads; ++h) {
        for (int r = 0; r < kRegisters; ++r) {
            sum[h][r].store_unaligned(t.partial + (head + h) * (2 + dim) + 2 + d + r * size);
        }
    }
}

template <class Arch, class Ops, CacheType kType, int64_t kDim, int kHeads>
void sum_channels(const AttentionTask &t, int64_t head, const int32_t *index, int64_t n) {
    constexpr int64_t size = xsimd::batch<float, Arch>::size;
    const int64_t dim = kDim == 0 ? t.dim_v : kDim;
    int64_t d = 0;
    for (; d + Ops::kValues * size <= dim; d += Ops::kValues * size) {
        sum_values<Arch, Ops, kType, kHeads, Ops::kValues>(t, dim, head, d, index, n);
    }
    for (; d < dim; d += size) {
        sum_values<Arch, Ops, kType, kHeads, 1>(t, dim, head, d, index, n);
    }
}

template <class Arch, class Ops, CacheType kType, int64_t kDim>
void sum_heads(const AttentionTask &t, const int32_t *index, int64_t n) {
    int64_t head = 0;
    for (; head + 4 <= t.heads; head += 4) {
        sum_channels<Arch, Ops, kType, kDim, 4>(t, head, index, n);
    }
    if (t.heads - head == 3) {
        sum_channels<Arch, Ops, kType, kDim, 3>(t, head, index, n);
    } else if (t.heads - head == 2) {
        sum_channels<Arch, Ops, kType, kDim, 2>(t, head, index, n);
    } else if (t.heads - head == 1) {
        sum_channels<Arch, Ops, kType, kDim, 1>(t, head, index, n);
    }
}

// Blocks of kLanes positions in which one counts at least. Others of a block have the weight 0.
struct ValueBlocks {
    int64_t n = 0;
    int64_t begin[kAttentionChunk / kLanes]; // first position of each

    // Where the positions' weights lie, [heads, kAttentionChunk], block after block; spread from the scratch.
    SEEDDELTA_INLINE const float *spread(const AttentionTask &t, const int32_t *index, int64_t count) {
        int64_t at[kAttentionChunk];
        for (int64_t j = 0; j < count; ++j) {
            const int64_t position = t.rows[index[j]];
            const int64_t block = position / kLanes * kLanes;
            if (n == 0 || begin[n - 1] != block) {
                begin[n++] = block;
            }
            at[j] = (n - 1) * kLanes + position % kLanes;
        }
        if (count == kAttentionChunk) { // already in place
            return t.scratch;
        }
        float *all = t.scratch + t.heads * kAttentionChunk;
        for (int64_t head = 0; head < t.heads; ++head) {
            const float *from = t.scratch + head * kAttentionChunk;
            float *weight = all + head * kAttentionChunk;
            for (int64_t i = 0; i < n * kLanes; ++i) {
                weight[i] = 0.0F;
            }
            for (int64_t j = 0; j < count; ++j) {
                weight[at[j]] = from[index[j]];
            }
        }
        return all;
    }
};

// kLanes positions of a channel as float32; those behind the last one are 0.
template <class Arch, class Ops>
SEEDDELTA_INLINE void widen_positions(const AttentionTask &t, const uint8_t *channel, int64_t begin, float *out) {
    constexpr int64_t size = xsimd::batch<float, Arch>::size;
    const auto *from = reinterpret_cast<const uint16_t *>(channel) + begin;
    alignas(32) uint16_t last[kLanes] = {};
    if (begin + kLanes > t.positions) {
        for (int64_t i = 0; begin + i < t.positions; ++i) {
            last[i] = from[i];
        }
        from = last;
    }
    for (int64_t i = 0; i < kLanes; i += size) {
        Ops::half(from + i).store_unaligned(out + i);
    }
}

// Four channels at a time: widened once, and multiplied with every head's weights.
template <class Arch, class Ops>
void sum_by_channel(const AttentionTask &t, const int32_t *index, int64_t n) {
    constexpr int64_t ahead = 8; // channels; their rows may all lie in the same set of a cache
    ValueBlocks blocks;
    const float *weight = blocks.spread(t, index, n);
    float *wide = four_rows(t);
    bool finite = true;
    for (int64_t d = 0; d < t.dim_v; d += 4) {
        for (int64_t i = 0; i < 4; ++i) {
            const uint8_t *channel = t.v + (d + i) * t.v_stride;
            for (int64_t b = 0; b < blocks.n; ++b) {
                if (d + i + ahead < t.dim_v) {
                    __builtin_prefetch(channel + ahead * t.v_stride + 2 * blocks.begin[b]);
                }
                widen_positions<Arch, Ops>(t, channel, blocks.begin[b], wide + i * kAttentionChunk + b * kLanes);
            }
        }
        for (int64_t head = 0; head < t.heads; ++head) {
            float *sum = t.partial + head * (2 + t.dim_v) + 2 + d;
            four_products<Arch, Ops>(weight + head * kAttentionChunk, wide, kAttentionChunk, blocks.n * kLanes, sum);
            const float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            finite = finite && all - all == 0.0F;
        }
    }
    if (!finite) { // 0 times what does not count may be no number, too
        sum_values_by_channel(t, index, n);
    }
}

// Calls `use` for a type of cache that is known when it is compiled.
template <class Use>
void with_type(CacheType type, const Use &use) {
    switch (type) {
    case CacheType::f16:
        return use.template operator()<CacheType::f16>();
    case CacheType::bf16:
        return use.template operator()<CacheType::bf16>();
    case CacheType::q8_0:
        return use.template operator()<CacheType::q8_0>();
    case CacheType::q4_0:
        return use.template operator()<CacheType::q4_0>();
    }
}

// The same with a head size that is known then, too, of the most common ones: a fifth faster. 0: any.
template <class Use>
void with_type_and_size(CacheType type, int64_t dim, const Use &use) {
    if (type == CacheType::f16 && dim == 64) {
        return use.template operator()<CacheType::f16, 64>();
    }
    if (type == CacheType::f16 && dim == 128) {
        return use.template operator()<CacheType::f16, 128>();
    }
    with_type(type, [&]<CacheType kType> { use.template operator()<kType, 0>(); });
}

// Positions whose weight counts for one head at least. Returns how many.
inline int64_t counted(const AttentionTask &t, int32_t *index) {
    if (t.negligible <= 0.0F) {
        for (int32_t i = 0; i < static_cast<int32_t>(t.n); ++i) {
            index[i] = i;
        }
        return t.n;
    }
    int64_t n = 0;
    for (int64_t i = 0; i < t.n; ++i) {
        bool used = false;
        for (int64_t head = 0; head < t.heads && !used; ++head) {
            used = !(t.scratch[head * kAttentionChunk + i] < t.negligible);
        }
        index[n] = static_cast<int32_t>(i);
        n += used ? 1 : 0;
    }
    return n;
}

template <class Arch, class Ops>
void attend_simd(AttentionTask &t) {
    if (t.given == nullptr) {
        with_type_and_size(t.k_type, t.dim_k,
                           [&]<CacheType kType, int64_t kDim> { query_keys<Arch, Ops, kType, kDim>(t); });
    }
    weigh<Arch, Ops>(t);
    int32_t index[kAttentionChunk];
    const int64_t n = counted(t, index);
    t.values = n;
    const auto sum_rows = [&](const AttentionTask &of) {
        if (of.v_by_channel) {
            sum_by_channel<Arch, Ops>(of, index, n);
        } else {
            with_type_and_size(of.v_type, of.dim_v,
                               [&]<CacheType kType, int64_t kDim> { sum_heads<Arch, Ops, kType, kDim>(of, index, n); });
        }
    };
    if (t.keys != nullptr) { // the same sums of the keys, while the weights are in place
        AttentionTask keys = t;
        keys.v_by_channel = false;
        keys.v_type = t.k_type;
        keys.v = t.k;
        keys.v_stride = t.k_stride;
        keys.dim_v = t.dim_k;
        keys.partial = t.keys;
        sum_rows(keys);
    }
    sum_rows(t);
}

} // namespace
} // namespace seeddelta
