// Encodes a matrix at 4 bits per weight and multiplies a vector by it, without Python.
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
    const seeddelta::LaneCode &code = *seeddelta::lane_code(8); // twice the bits
    seeddelta::seeddelta_ctx w{.n_out = rows,
                               .n_in = columns,
                               .base = seeddelta::BaseKind::lanes,
                               .base_scale = 1 / code.deviation,
                               .lane_code = &code,
                               .lane_lines = code.lines(columns)};
    std::vector<uint8_t> codes(w.n_tiles() * w.tile_bytes());
    std::vector<uint16_t> row_scale(rows);
    seeddelta::lanes_encode(weights.data(), rows, columns, {.code = &code, .groups = {code.stream_steps(columns)}},
                            nullptr, codes.data(), row_scale.data(), 1);
    w.codes = codes.data(), w.row_scale_f16 = row_scale.data();
    seeddelta::seeddelta_compute(w, x.data(), y.data(), 1);
    float exact = 0;
    for (int64_t j = 0; j < columns; ++j)
        exact += weights[j];
    std::printf("row 0: %.3f, exactly %.3f\n", y[0], exact);
    return std::fabs(y[0] - exact) < 1.0F ? 0 : 1;
}
