#include <algorithm>

#include "bindings/bind_encode.hpp"
#include "format/procedural.hpp"
#include "format/rotation.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

static py::array_t<int8_t> prng_values(uint64_t seed, int64_t row_begin, int64_t row_end, int64_t n_in,
                                       uint32_t block) {
    if (row_begin < 0 || row_end < row_begin || n_in < 1 || !prng_block_width(block)) {
        throw py::value_error("rows or n_in out of range, or block not 8, 16, 32 or 64");
    }
    py::array_t<int8_t> out({row_end - row_begin, n_in});
    int8_t *data = out.mutable_data();
    const py::gil_scoped_release release;
    for (int64_t row = row_begin; row < row_end; ++row) {
        prng_block_row(seed, static_cast<uint64_t>(row), n_in, block, data + (row - row_begin) * n_in);
    }
    return out;
}

static py::array_t<float> rotate_rows(const FloatMatrix &rows, int64_t block, uint64_t seed, bool inverse) {
    require_array(rows, "rows", "f", 4, {-1, -1});
    require_rotation(block, rows.shape(1));
    py::array_t<float> out({rows.shape(0), rows.shape(1)});
    std::copy_n(rows.data(), rows.size(), out.mutable_data());
    float *data = out.mutable_data();
    const int64_t n = rows.shape(1);
    if (block > 1) {
        for (int64_t r = 0; r < rows.shape(0); ++r) {
            if (inverse) {
                rotate_back(data + r * n, n, static_cast<uint32_t>(block), seed);
            } else {
                kernels().linear.rotate(data + r * n, data + r * n, n, static_cast<uint32_t>(block), seed);
            }
        }
    }
    return out;
}

void bind_encode(py::module_ &m) {
    m.def("prng_block_values", &prng_values, py::arg("seed"), py::arg("row_begin"), py::arg("row_end"), py::arg("n_in"),
          py::arg("block") = 64, "Values of base kind prng_block, int8 [row_end - row_begin, n_in], odd, −63 to 63.");
    m.def("rotate", &rotate_rows, py::arg("rows"), py::arg("block"), py::arg("seed"), py::arg("inverse") = false,
          "Seeded signs and block Hadamard transform of every row of float32 [n, n_in]; orthonormal. Returns a copy.");
    m.attr("PRNG_BLOCK_STD") = kPrngBlockStd;
}

} // namespace seeddelta
