// Encodes a matrix at 4 bits a weight and multiplies a vector by it, without Python.
#include <cmath>
#include <cstdio>
#include <vector>

#include <seeddelta/compute.hpp>
#include <seeddelta/encode.hpp>

int main() {
    const int64_t rows = 16, columns = 64;
    std::vector<float> weights(rows * columns), x(columns, 1.0F), y(rows);
    for (int64_t i = 0; i < rows * columns; ++i)
        weights[i] = std::sin(static_cast<float>(i * i % 97));
    seeddelta::seeddelta_ctx w{.n_out = rows,
                               .n_in = columns,
                               .base = seeddelta::BaseKind::trellis,
                               .base_scale = 1 / 19.862F,
                               .step_bits = 4,
                               .multiplier = {0xB5C7, 0}};
    std::vector<uint16_t> codes(w.n_tiles() * w.words() * 16), row_scale(rows);
    seeddelta::trellis_encode(weights.data(), rows, columns, {.multiplier = {0xB5C7, 0}}, nullptr, nullptr,
                              codes.data(), row_scale.data(), 1);
    w.codes = codes.data(), w.row_scale_f16 = row_scale.data();
    seeddelta::seeddelta_compute(w, x.data(), y.data(), 1);
    float exact = 0;
    for (int64_t j = 0; j < columns; ++j)
        exact += weights[j];
    std::printf("row 0: %.3f, exactly %.3f\n", y[0], exact);
    return std::fabs(y[0] - exact) < 1.0F ? 0 : 1;
}
