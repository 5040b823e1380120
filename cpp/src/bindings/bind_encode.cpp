#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cmath>
#include <optional>

#include "bindings/bind_encode.hpp"
#include "format/column_trellis.hpp"
#include "format/parallel.hpp"
#include "format/procedural.hpp"
#include "format/rotation.hpp"
#include "format/trellis.hpp"
#include "seeddelta/encode.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

using TrellisCode = py::typing::Tuple<py::array_t<uint16_t>, py::array, float, std::vector<int>>;

static TrellisSpec make_spec(int step_bits, int values_per_step, int state_bits, std::optional<float> scale_factor,
                             const std::vector<int> &chosen_multipliers, std::vector<int> &multipliers) {
    if (!trellis_rate_supported(step_bits, values_per_step)) {
        throw py::value_error("unsupported trellis rate: step_bits " + std::to_string(step_bits) +
                              ", values_per_step " + std::to_string(values_per_step) +
                              "; use 1 to 6 bits for one value, 3 or 5 for two");
    }
    if (state_bits < 12 || state_bits > 16) {
        throw py::value_error("state_bits must be between 12 and 16");
    }
    if (!chosen_multipliers.empty() && chosen_multipliers.size() != static_cast<size_t>(values_per_step)) {
        throw py::value_error("multipliers must have one entry a value of a step");
    }
    TrellisSpec spec;
    spec.step_bits = step_bits;
    spec.values_per_step = values_per_step;
    spec.state_bits = state_bits;
    spec.scale_factor = scale_factor.value_or(0.0F);
    for (int v = 0; v < values_per_step; ++v) {
        spec.multiplier[v] = chosen_multipliers.empty() ? trellis_multiplier(state_bits, v)
                                                        : static_cast<uint16_t>(chosen_multipliers.at(v));
        multipliers.push_back(spec.multiplier[v]);
    }
    return spec;
}

static TrellisCode encode(const FloatMatrix &weights, int step_bits, int values_per_step, int state_bits,
                          int64_t rotation_block, uint64_t seed, const OptionalVector &importance,
                          std::optional<float> scale_factor, const std::vector<int> &chosen_multipliers,
                          const OptionalVector &feedback, int64_t feedback_block, int64_t lookahead, int threads) {
    require_array(weights, "weights", "f", 4, {-1, -1});
    require_finite(weights, "weights");
    const int64_t n_out = weights.shape(0);
    const int64_t n_in = weights.shape(1);
    require_rotation(rotation_block, n_in);
    std::vector<int> multipliers;
    TrellisSpec spec = make_spec(step_bits, values_per_step, state_bits, scale_factor, chosen_multipliers, multipliers);
    spec.rotation_block = static_cast<uint32_t>(rotation_block);
    spec.seed = seed;
    const float *h = importance_data(importance, n_in);
    seeddelta_ctx shape;
    shape.n_out = n_out;
    shape.n_in = n_in;
    shape.step_bits = static_cast<uint32_t>(step_bits);
    shape.values_per_step = static_cast<uint32_t>(values_per_step);
    py::array_t<uint16_t> codes({shape.n_tiles(), shape.words(), kTileRows});
    py::array_t<uint16_t> row_scale(n_out);
    Feedback feed{nullptr, feedback_block, lookahead};
    if (feedback) {
        require_array(*feedback, "feedback", "f", 4, {n_in, n_in});
        require_finite(*feedback, "feedback");
        if (rotation_block != 0 || feedback_block < 16 || feedback_block % 16 != 0 || lookahead < 0) {
            throw py::value_error(
                "feedback wants rows that are rotated already (rotation_block 0), a feedback_block that is "
                "a multiple of 16, and lookahead >= 0");
        }
        feed.matrix = feedback->data();
    }
    uint16_t *codes_out = codes.mutable_data();
    uint16_t *scale_out = row_scale.mutable_data();
    {
        // Safe without the GIL: the arrays are held by this frame, and the outputs are not yet visible to Python.
        const py::gil_scoped_release release;
        trellis_encode(weights.data(), n_out, n_in, spec, h, feedback ? &feed : nullptr, codes_out, scale_out, threads);
    }
    return py::make_tuple(codes, row_scale.attr("view")("float16"), static_cast<float>(1.0 / kTrellisStd), multipliers);
}

static TrellisCode encode_columns(const FloatMatrix &units, int step_bits, int values_per_step, int state_bits,
                                  std::optional<float> scale_factor, const OptionalVector &feedback, int64_t window,
                                  int64_t rounds, int threads) {
    require_array(units, "units", "f", 4, {-1, -1});
    require_finite(units, "units");
    const int64_t n_in = units.shape(0);
    const int64_t n_out = units.shape(1);
    std::vector<int> multipliers;
    const TrellisSpec spec = make_spec(step_bits, values_per_step, state_bits, scale_factor, {}, multipliers);
    if (window < 1 || rounds < 1) {
        throw py::value_error("window and rounds must be at least 1");
    }
    if (feedback) {
        require_array(*feedback, "feedback", "f", 4, {n_in, n_in});
        require_finite(*feedback, "feedback");
    }
    ColumnWeight shape;
    shape.kind = ColumnKind::trellis;
    shape.n_out = n_out;
    shape.step_bits = static_cast<uint32_t>(step_bits);
    shape.values_per_step = static_cast<uint32_t>(values_per_step);
    py::array_t<uint16_t> codes({n_in, column_words(step_bits, shape.steps()), kTileRows});
    py::array_t<uint16_t> unit_scale(n_in);
    uint16_t *codes_out = codes.mutable_data();
    uint16_t *scale_out = unit_scale.mutable_data();
    {
        const py::gil_scoped_release release; // as in encode
        columns_encode(units.data(), n_out, n_in, spec, feedback ? feedback->data() : nullptr, window, rounds,
                       codes_out, scale_out, threads);
    }
    return py::make_tuple(codes, unit_scale.attr("view")("float16"), static_cast<float>(1.0 / kTrellisStd),
                          multipliers);
}

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
    m.def(
        "trellis_encode", &encode, py::arg("weights"), py::kw_only(), py::arg("step_bits") = 4,
        py::arg("values_per_step") = 1, py::arg("state_bits") = 12, py::arg("rotation_block") = 0, py::arg("seed") = 0,
        py::arg("importance") = py::none(), py::arg("scale_factor") = py::none(),
        py::arg("multipliers") = std::vector<int>{}, py::arg("feedback") = py::none(), py::arg("feedback_block") = 64,
        py::arg("lookahead") = 8, py::arg("threads") = 0,
        "Encodes float32 [n_out, n_in] by Viterbi search over the hash trellis (docs/reference/format.md).\n\n"
        "Args:\n"
        "    step_bits, values_per_step: k bits for each step of 1 value (1..6) or 2 values (3, 5).\n"
        "    state_bits: L, 12 to 16. Longer is better and slower (twice the time a bit).\n"
        "    importance: float32 [n_in] > 0, E[x²] a column; the weighted squared error is minimised.\n"
        "    scale_factor: initial row scale over the row's root mean square; None is the measured best for the rate.\n"
        "    multipliers: of the hash, one a value of a step; empty is the vetted choice for state_bits.\n"
        "    feedback: float32 [n_in, n_in]; rows of column block b hold (H⁻¹_bb)⁻¹ H⁻¹_b,rest after b (GPTQ/LDLQ). "
        "The\n"
        "        weights and the importance must be those of the rotated columns, rotation_block 0.\n"
        "    lookahead: steps searched beyond a block of feedback before its states are fixed.\n"
        "    threads: 0 is all processors. The result does not depend on it.\n"
        "Returns: (codes uint16 [ceil(n_out / 16), words, 16], row_scale float16 [n_out], base_scale, multipliers).\n"
        "Raises: ValueError for NaN or infinite weights and options out of range.");
    m.def("columns_encode", &encode_columns, py::arg("units"), py::kw_only(), py::arg("step_bits") = 4,
          py::arg("values_per_step") = 1, py::arg("state_bits") = 12, py::arg("scale_factor") = py::none(),
          py::arg("feedback") = py::none(), py::arg("window") = 32, py::arg("rounds") = 2, py::arg("threads") = 0,
          "Encodes units float32 [n_in, n_out] in column layout (docs/reference/format.md): W transposed, "
          "outputs already rotated.\n\n"
          "Args:\n"
          "    step_bits, values_per_step, state_bits, scale_factor, threads: as for trellis_encode.\n"
          "    feedback: float32 [n_in, n_in]; the error e of unit j changes each later unit l by -e · feedback[l, j]\n"
          "        (GPTQ: H⁻¹_jl / H⁻¹_jj of the units that are left).\n"
          "    window: steps on each side of the seam that are searched to choose where the closed walk begins.\n"
          "    rounds: searches of the whole walk, each closed at another place; none makes it worse.\n"
          "Returns: (codes uint16 [n_in, words, 16], unit_scale float16 [n_in], base_scale, multipliers).\n"
          "Raises: ValueError for NaN or infinite weights and options out of range.");
    m.def("prng_block_values", &prng_values, py::arg("seed"), py::arg("row_begin"), py::arg("row_end"), py::arg("n_in"),
          py::arg("block") = 64, "Values of base kind prng_block, int8 [row_end - row_begin, n_in], odd, −63 to 63.");
    m.def("rotate", &rotate_rows, py::arg("rows"), py::arg("block"), py::arg("seed"), py::arg("inverse") = false,
          "Seeded signs and block Hadamard transform of every row of float32 [n, n_in]; orthonormal. Returns a copy.");
    m.attr("PRNG_BLOCK_STD") = kPrngBlockStd;
    m.attr("TRELLIS_STD") = kTrellisStd;
}

} // namespace seeddelta
