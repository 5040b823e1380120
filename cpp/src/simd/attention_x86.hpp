// The words of attention (simd/attention.hpp) on x86, and sums over key bits in 256 bits. Include inside an
// instruction-set unit only.
#pragma once
#include <immintrin.h>

#include "simd/attention_prompt.hpp"

namespace seeddelta {
namespace {

// Four keys' four lanes each: lane i + lane i + 2, then + 1, of every key.
SEEDDELTA_INLINE void sum_of_four(__m128 a, __m128 b, __m128 c, __m128 d, float *out) {
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d)));
}

#if defined(__AVX2__)
struct AttentionOps256 {
    using F = xsimd::batch<float, xsimd::avx2>;
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static SEEDDELTA_INLINE F words(const int16_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static SEEDDELTA_INLINE F bytes(const int8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static SEEDDELTA_INLINE float half_one(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
    static SEEDDELTA_INLINE __m128 fold(const F *r) {
        const __m256 eight = _mm256_add_ps(r[0], r[1]);
        return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    static SEEDDELTA_INLINE void sum4(const F *a, const F *b, const F *c, const F *d, float *out) {
        sum_of_four(fold(a), fold(b), fold(c), fold(d), out);
    }
    static SEEDDELTA_INLINE F fused(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static constexpr int kRegisters = 16;
    static constexpr int kValues = 2;
    static constexpr int kTileRows = 6;
    static constexpr int kTileRegisters = 2;
};

// 32 sums of bytes, one a key, in two registers of 16 bits: even and odd keys.
struct ByteSums {
    __m256i all = _mm256_setzero_si256();  // even + 256 odd, modulo 2^16
    __m256i high = _mm256_setzero_si256(); // odd
    SEEDDELTA_INLINE void add(__m256i bytes) {
        all = _mm256_add_epi16(all, bytes);
        high = _mm256_add_epi16(high, _mm256_srli_epi16(bytes, 8));
    }
    // Sums less `bias`, in the order of the keys.
    SEEDDELTA_INLINE void put(int bias, const ScoreTask &t, int16_t *out) const {
        const __m256i b = _mm256_set1_epi16(static_cast<int16_t>(bias));
        const __m256i even = _mm256_sub_epi16(_mm256_sub_epi16(all, _mm256_slli_epi16(high, 8)), b);
        const __m256i odd = _mm256_sub_epi16(high, b);
        const __m256i low = _mm256_unpacklo_epi16(even, odd); // keys 0-7, 16-23
        const __m256i top = _mm256_unpackhi_epi16(even, odd); // keys 8-15, 24-31
        store(_mm256_permute2x128_si256(low, top, 0x20), t.add, out);
        store(_mm256_permute2x128_si256(low, top, 0x31), t.add, out + 16);
    }
    static SEEDDELTA_INLINE void store(__m256i sums, int add, int16_t *out) {
        auto *at = reinterpret_cast<__m256i *>(out);
        if (add > 0) {
            sums = _mm256_add_epi16(_mm256_loadu_si256(at), sums);
        } else if (add < 0) {
            sums = _mm256_sub_epi16(_mm256_loadu_si256(at), sums);
        }
        _mm256_storeu_si256(at, sums);
    }
};

// The query's partial sums by look-up, four channels at a time; two blocks share the tables. Bytes are biased by 128.
template <int kBlocks>
SEEDDELTA_INLINE void score_blocks(const ScoreTask &t, int64_t block) {
    const int64_t bytes = t.dim / 8;
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i bias = _mm256_set1_epi8(static_cast<char>(0x80));
    ByteSums sums[kBlocks];
    const uint8_t *plane = t.plane + block * bytes * kKeyBlock;
    for (int64_t b = 0; b < bytes; ++b) {
        const auto *table = reinterpret_cast<const __m128i *>(t.table) + 2 * b;
        const __m256i low = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128(table)), bias);
        const __m256i high = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128(table + 1)), bias);
        for (int i = 0; i < kBlocks; ++i) {
            const __m256i bits =
                _mm256_loadu_si256(reinterpret_cast<const __m256i *>(plane + (i * bytes + b) * kKeyBlock));
            sums[i].add(_mm256_shuffle_epi8(low, _mm256_and_si256(bits, nibble)));
            sums[i].add(_mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(bits, 4), nibble)));
        }
    }
    for (int i = 0; i < kBlocks; ++i) {
        sums[i].put(static_cast<int>(128 * 2 * bytes), t, t.sums + (block + i) * kKeyBlock);
    }
}

inline void score_256(const ScoreTask &t) {
    int64_t block = 0;
    for (; block + 2 <= t.blocks; block += 2) {
        score_blocks<2>(t, block);
    }
    for (; block < t.blocks; ++block) {
        score_blocks<1>(t, block);
    }
}
#endif

} // namespace
} // namespace seeddelta
