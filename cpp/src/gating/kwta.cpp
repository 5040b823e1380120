#include "gating/kwta.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "simd/kernel_table.hpp"

namespace seeddelta {

static constexpr int32_t kInfinity = 0x7F800000;
static constexpr int32_t kFirstStep = 1 << 19; // 1/16 of an octave: tokens that follow each other differ by less

bool kwta_scores(const float *x, int64_t n, const float *norm, int block, int32_t *score) {
    int32_t largest = 0;
    if (block > 1) {
        for (int64_t start = 0; start < n; start += block) {
            float sum = 0.0F;
            for (int64_t i = start; i < std::min(start + block, n); ++i) {
                const float s = norm == nullptr ? x[i] : x[i] * norm[i];
                sum += s * s;
            }
            const int32_t bits = std::bit_cast<int32_t>(sum) & 0x7FFFFFFF;
            score[start / block] = bits;
            largest = std::max(largest, bits);
        }
        return largest < kInfinity;
    }
    for (int64_t i = 0; i < n; ++i) {
        score[i] = std::bit_cast<int32_t>(norm == nullptr ? x[i] : x[i] * norm[i]) & 0x7FFFFFFF;
        largest = std::max(largest, score[i]);
    }
    return largest < kInfinity;
}

// Counts against a threshold, by regula falsi on the bits, with a bisection every third time. Most searches end as soon
// as a threshold has exactly k scores above it; equal scores at the boundary end it at neighboring integers.
TopK top_k(const int32_t *score, int64_t n, int64_t k, int32_t guess) {
    const auto count_above = kernels().gating.count_above;
    int32_t low = -1; // k or more are above
    int32_t high = kInfinity;
    int64_t above_low = count_above(score, n, low);
    int64_t above_high = 0;
    TopK found{-1, 0, 1};
    if (above_low <= k) {
        return found;
    }
    int64_t step = kFirstStep;
    int64_t probe = guess;
    while (high - low > 1) {
        probe = std::clamp<int64_t>(probe, low + 1, high - 1);
        const auto threshold = static_cast<int32_t>(probe);
        const int64_t above = count_above(score, n, threshold);
        ++found.passes;
        if (above == k) {
            found.threshold = threshold;
            return found;
        }
        if (above > k) {
            low = threshold;
            above_low = above;
        } else {
            high = threshold;
            above_high = above;
        }
        if (low < 0 || high == kInfinity) { // not between two measured thresholds yet
            probe = above > k ? probe + step : probe - step;
            step *= 2;
        } else if (found.passes % 3 == 0) {
            probe = low + (static_cast<int64_t>(high) - low) / 2;
        } else {
            probe = low + (static_cast<int64_t>(high) - low) * (above_low - k) / (above_low - above_high);
        }
    }
    found.threshold = high;
    found.ties = k - above_high;
    return found;
}

float kwta_renormalization(const float *x, int64_t n, const int32_t *index, int64_t kept, float temperature) {
    if (kept == 0) {
        return 1.0F;
    }
    if (temperature <= 0.0F) {
        return static_cast<float>(n) / static_cast<float>(kept);
    }
    float square = 0.0F;
    float largest = 0.0F;
    for (int64_t i = 0; i < n; ++i) {
        square += x[i] * x[i];
        largest = std::max(largest, std::fabs(x[i]));
    }
    const float scale = 1.0F / (temperature * std::sqrt(square / static_cast<float>(n)) + 0x1p-100F);
    const auto weight = [&](int64_t i) { return std::exp((std::fabs(x[i]) - largest) * scale); };
    float all = 0.0F;
    for (int64_t i = 0; i < n; ++i) {
        all += weight(i);
    }
    float some = 0.0F;
    for (int64_t i = 0; i < kept; ++i) {
        some += weight(index[i]);
    }
    return some > 0.0F ? all / some : 1.0F;
}

} // namespace seeddelta
