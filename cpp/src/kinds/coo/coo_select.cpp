#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "format/parallel.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

void coo_select(const float *delta, int64_t n_out, int64_t n_in, int64_t k, const float *importance, uint32_t *index,
                float *value, int threads) {
    std::vector<float> weight(static_cast<size_t>(n_in), 1.0F);
    if (importance != nullptr) {
        std::transform(importance, importance + n_in, weight.begin(), [](float h) { return std::sqrt(h); });
    }
    parallel_for(n_out, threads, [&](int64_t row, int) {
        const float *d = delta + row * n_in;
        std::vector<uint32_t> order(static_cast<size_t>(n_in));
        std::iota(order.begin(), order.end(), 0U);
        std::nth_element(order.begin(), order.begin() + k, order.end(), [&](uint32_t a, uint32_t b) {
            const float x = std::fabs(d[a]) * weight[a];
            const float y = std::fabs(d[b]) * weight[b];
            return x != y ? x > y : a < b;
        });
        std::sort(order.begin(), order.begin() + k);
        for (int64_t i = 0; i < k; ++i) {
            index[row * k + i] = order[static_cast<size_t>(i)];
            value[row * k + i] = d[order[static_cast<size_t>(i)]];
        }
    });
}

} // namespace seeddelta
