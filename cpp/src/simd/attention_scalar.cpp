// The definition of attention's arithmetic: every other table must give these bits.
#include "simd/attention_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "format/float16.hpp"

namespace seeddelta {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

float largest(const float *x, int64_t n) {
    float top = kNone;
    for (int64_t i = 0; i < n; ++i) {
        top = x[i] > top ? x[i] : top;
    }
    return top + 0.0F; // one zero, whatever the order
}

uint16_t half_at(const uint8_t *p) {
    uint16_t h = 0;
    std::memcpy(&h, p, sizeof(h));
    return h;
}

float channel(CacheType type, const uint8_t *row, int64_t i) {
    if (type == CacheType::f16) {
        return half_to_float(half_at(row + 2 * i));
    }
    if (type == CacheType::bf16) {
        return std::bit_cast<float>(uint32_t{half_at(row + 2 * i)} << 16);
    }
    const int64_t at = i % kCacheBlock;
    if (type == CacheType::q8_0) {
        const uint8_t *block = row + i / kCacheBlock * kQ8Bytes;
        return half_to_float(half_at(block)) * static_cast<float>(static_cast<int8_t>(block[2 + at]));
    }
    const uint8_t *block = row + i / kCacheBlock * kQ4Bytes;
    const int both = block[2 + at % (kCacheBlock / 2)];
    const int four = at < kCacheBlock / 2 ? both & 15 : both >> 4;
    return half_to_float(half_at(block)) * static_cast<float>(four - 8);
}

float row_dot(CacheType type, const float *q, const uint8_t *k, int64_t n) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
        lane[i % kLanes] = std::fma(q[i], channel(type, k, i), lane[i % kLanes]);
    }
    return fold_lanes(lane);
}

// Sums of the keys of the positions that index names, with their weights.
void sum_keys(const AttentionTask &t, const int32_t *index) {
    for (int64_t head = 0; head < t.heads; ++head) {
        float *sum = t.keys + head * (2 + t.dim_k) + 2;
        std::fill_n(sum, t.dim_k, 0.0F);
        for (int64_t j = 0; j < t.values; ++j) {
            const float p = t.scratch[head * kAttentionChunk + index[j]];
            for (int64_t d = 0; d < t.dim_k; ++d) {
                sum[d] = std::fma(p, channel(t.k_type, t.k + t.rows[index[j]] * t.k_stride, d), sum[d]);
            }
        }
    }
}

void attend(AttentionTask &t) {
    const int64_t stride = 2 + t.dim_v;
    bool used[kAttentionChunk] = {};
    for (int64_t head = 0; head < t.heads; ++head) {
        float *score = t.scratch + head * kAttentionChunk;
        for (int64_t i = 0; i < t.n; ++i) {
            float s = t.given != nullptr
                          ? t.given[head * kAttentionChunk + i]
                          : row_dot(t.k_type, t.q + head * t.dim_k, t.k + t.rows[i] * t.k_stride, t.dim_k);
            if (t.softcap != 0.0F) {
                s = t.softcap * tanh_defined(s);
            }
            score[i] = t.bias != nullptr ? s + t.slope[head] * t.bias[i] : s;
        }
        const float top = largest(score, t.n);
        float lane[kLanes] = {};
        for (int64_t i = 0; i < t.n; ++i) {
            score[i] = exp_defined(score[i] - top);
            lane[i % kLanes] += score[i];
            used[i] = used[i] || !(score[i] < t.negligible);
        }
        float *partial = t.partial + head * stride;
        partial[0] = top;
        partial[1] = fold_lanes(lane);
        for (int64_t d = 0; d < t.dim_v; ++d) {
            partial[2 + d] = 0.0F;
        }
    }
    int32_t index[kAttentionChunk];
    t.values = 0;
    for (int32_t i = 0; i < t.n; ++i) {
        if (used[i]) {
            index[t.values++] = i;
        }
    }
    if (t.keys != nullptr) {
        sum_keys(t, index);
    }
    if (t.v_by_channel) {
        sum_values_by_channel(t, index, t.values);
        return;
    }
    for (int64_t j = 0; j < t.values; ++j) {
        const int64_t i = index[j];
        const uint8_t *v = t.v + t.rows[i] * t.v_stride;
        for (int64_t head = 0; head < t.heads; ++head) {
            const float p = t.scratch[head * kAttentionChunk + i];
            float *sum = t.partial + head * stride + 2;
            for (int64_t d = 0; d < t.dim_v; ++d) {
                sum[d] = std::fma(p, channel(t.v_type, v, d), sum[d]);
            }
        }
    }
}

void put(const ScoreTask &t, int64_t key, int sum) {
    const int before = t.add == 0 ? 0 : t.sums[key];
    t.sums[key] = static_cast<int16_t>(t.add < 0 ? before - sum : before + sum);
}

const uint8_t *byte_of(const ScoreTask &t, int64_t key, int64_t byte) {
    return t.plane + (key / kKeyBlock * (t.dim / 8) + byte) * kKeyBlock + key % kKeyBlock;
}

void score(const ScoreTask &t) {
    for (int64_t key = 0; key < t.blocks * kKeyBlock; ++key) {
        int sum = 0;
        for (int64_t b = 0; b < t.dim / 8; ++b) {
            const uint8_t bits = *byte_of(t, key, b);
            sum += t.table[2 * b * 16 + (bits & 15)] + t.table[(2 * b + 1) * 16 + (bits >> 4)];
        }
        put(t, key, sum);
    }
}

void count_bits(const ScoreTask &t) {
    for (int64_t key = 0; key < t.blocks * kKeyBlock; ++key) {
        int sum = 0;
        for (int64_t b = 0; b < t.dim / 8; ++b) {
            const uint8_t bits = *byte_of(t, key, b);
            sum += std::popcount(static_cast<uint8_t>(bits & t.plus[b])) -
                   std::popcount(static_cast<uint8_t>(bits & t.minus[b]));
        }
        put(t, key, sum);
    }
}

float estimate(const int16_t *sums, const float *gamma, int64_t n, float factor, float offset, float *out) {
    for (int64_t i = 0; i < n; ++i) {
        out[i] = gamma[i] * (factor * static_cast<float>(sums[i]) + offset);
    }
    return largest(out, n);
}

void nearness(const float *estimates, int64_t stride, const float *top, int64_t heads, int64_t n, float *out) {
    for (int64_t i = 0; i < n; ++i) {
        out[i] = kNone;
        for (int64_t head = 0; head < heads; ++head) {
            const float a = estimates[head * stride + i] - top[head];
            out[i] = a > out[i] ? a : out[i];
        }
    }
}

int64_t count(const float *a, int64_t n, float limit) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
        found += a[i] >= limit ? 1 : 0;
    }
    return found;
}

void above(const float *a, int64_t n, float limit, uint64_t *words) {
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t word = 0;
        for (int64_t bit = 0; bit < 64; ++bit) {
            word |= static_cast<uint64_t>(a[i + bit] >= limit) << bit;
        }
        words[i / 64] = word;
    }
}

float mass(const float *a, int64_t n, float limit) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
        lane[i % kLanes] += a[i] >= limit ? exp_defined(a[i]) : 0.0F;
    }
    return fold_lanes(lane);
}

} // namespace

void widen_row(CacheType type, const uint8_t *row, int64_t dim, float *out) {
    for (int64_t i = 0; i < dim; ++i) {
        out[i] = channel(type, row, i);
    }
}

void sum_values_by_channel(const AttentionTask &t, const int32_t *index, int64_t n) {
    for (int64_t head = 0; head < t.heads; ++head) {
        for (int64_t d = 0; d < t.dim_v; ++d) {
            const uint8_t *v = t.v + d * t.v_stride;
            float lane[kLanes] = {};
            for (int64_t j = 0; j < n; ++j) {
                const int64_t position = t.rows[index[j]];
                float &sum = lane[position % kLanes];
                sum = std::fma(t.scratch[head * kAttentionChunk + index[j]], half_to_float(half_at(v + 2 * position)),
                               sum);
            }
            t.partial[head * (2 + t.dim_v) + 2 + d] = fold_lanes(lane);
        }
    }
}

const AttentionKernels &attention_scalar() {
    static constexpr AttentionKernels table{.attend = attend,
                                            .widen = widen_scalar,
                                            .prompt = prompt_scalar,
                                            .fused = false,
                                            .score = score,
                                            .popcount = count_bits,
                                            .estimate = estimate,
                                            .nearness = nearness,
                                            .count = count,
                                            .above = above,
                                            .mass = mass};
    return table;
}

} // namespace seeddelta
