// The encoder of base kind lanes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "bindings/bind_encode.hpp"
#include "encode/lane_blocks.hpp"
#include "format/column_lanes.hpp"
#include "format/float16.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

using LanesResult = py::typing::Tuple<py::array_t<uint8_t>, py::array>;

static LanesResult encode(const FloatMatrix &weights, const LaneCode &code, const std::vector<int64_t> &groups,
                          int64_t rotation_block, uint64_t seed, const OptionalVector &importance,
                          std::optional<float> scale_factor, const OptionalVector &feedback, int64_t lookahead,
                          int64_t beam_width, int threads) {
    require_array(weights, "weights", "f", 4, {-1, -1});
    require_finite(weights, "weights");
    const int64_t n_out = weights.shape(0);
    const int64_t n_in = weights.shape(1);
    require_rotation(rotation_block, n_in);
    if (lookahead < 0) {
        throw py::value_error("lookahead must be at least 0");
    }
    if (beam_width < 1 || beam_width > 32 || !std::has_single_bit(static_cast<uint64_t>(beam_width))) {
        throw py::value_error("beam_width must be 1, 2, 4, 8, 16 or 32");
    }
    LanesSpec spec;
    spec.code = &code;
    spec.rotation_block = static_cast<uint32_t>(rotation_block);
    spec.seed = seed;
    spec.scale_factor = scale_factor.value_or(0.0F);
    spec.groups = groups;
    spec.lookahead = lookahead;
    spec.beam_width = beam_width;
    if (feedback) {
        require_array(*feedback, "feedback", "f", 4, {n_in, n_in});
        require_finite(*feedback, "feedback");
        if (rotation_block != 0) {
            throw py::value_error("feedback wants rows that are rotated already (rotation_block 0)");
        }
        spec.feedback = feedback->data();
    }
    const float *h = importance_data(importance, n_in);
    py::array_t<uint8_t> codes({(n_out + kTileRows - 1) / kTileRows, code.lines(n_in), kLaneBytes});
    py::array_t<uint16_t> row_scale(n_out);
    uint8_t *codes_out = codes.mutable_data();
    uint16_t *scale_out = row_scale.mutable_data();
    {
        // Safe without the GIL: the arrays are held by this frame, and the outputs are not yet visible to Python.
        const py::gil_scoped_release release;
        lanes_encode(weights.data(), n_out, n_in, spec, h, codes_out, scale_out, threads);
    }
    return py::make_tuple(codes, row_scale.attr("view")("float16"));
}

static LanesResult encode_columns(const FloatMatrix &units, const LaneCode &code, std::optional<float> scale_factor,
                                  const OptionalVector &feedback, int threads) {
    require_array(units, "units", "f", 4, {-1, -1});
    require_finite(units, "units");
    const int64_t n_in = units.shape(0);
    const int64_t n_out = units.shape(1);
    LanesSpec spec;
    spec.code = &code;
    spec.scale_factor = scale_factor.value_or(0.0F);
    if (feedback) {
        require_array(*feedback, "feedback", "f", 4, {n_in, n_in});
        require_finite(*feedback, "feedback");
        spec.feedback = feedback->data();
    }
    py::array_t<uint8_t> codes({n_in, column_streams(n_out), column_lines(code)});
    py::array_t<uint16_t> input_scale(n_in);
    uint8_t *codes_out = codes.mutable_data();
    uint16_t *scale_out = input_scale.mutable_data();
    {
        const py::gil_scoped_release release; // as in encode
        columns_lanes_encode(units.data(), n_out, n_in, spec, codes_out, scale_out, threads);
    }
    return py::make_tuple(codes, input_scale.attr("view")("float16"));
}

using Blocks = py::typing::Tuple<py::array_t<int32_t>, py::array_t<int32_t>>;

static Blocks blocks(const LaneCode &code, int64_t n_in, const std::vector<int64_t> &groups) {
    if (n_in < 1) {
        throw py::value_error("n_in must be at least 1");
    }
    const LaneBlocks plan = lane_blocks(code, n_in, groups);
    py::array_t<int32_t> order(n_in);
    std::copy(plan.order.begin(), plan.order.end(), order.mutable_data());
    py::array_t<int32_t> ends(static_cast<py::ssize_t>(plan.blocks.size()));
    std::transform(plan.blocks.begin(), plan.blocks.end(), ends.mutable_data(),
                   [](const LaneBlock &b) { return static_cast<int32_t>(b.end); });
    return py::make_tuple(order, ends);
}

void bind_encode_lanes(py::module_ &m) {
    m.def("lanes_encode", &encode, py::arg("weights"), py::kw_only(), py::arg("code"), py::arg("groups"),
          py::arg("rotation_block") = 0, py::arg("seed") = 0, py::arg("importance") = py::none(),
          py::arg("scale_factor") = py::none(), py::arg("feedback") = py::none(), py::arg("lookahead") = 16,
          py::arg("beam_width") = 1, py::arg("threads") = 0,
          "Encodes float32 [n_out, n_in] by Viterbi search over byte lanes (docs/reference/format.md).\n\n"
          "Args:\n"
          "    code: one of lane_codes().\n"
          "    groups: steps that are decided together, stream by stream; they add up to code.stream_steps(n_in), and "
          "the\n"
          "        first has 32 at least (or all).\n"
          "    importance: float32 [n_in] > 0, E[x²] a column; the weighted squared error is minimized.\n"
          "    scale_factor: initial row scale over the row's root mean square; None is the measured best.\n"
          "    feedback: float32 [n_in, n_in], rows and columns in the order of `lane_blocks`; rows of block b hold\n"
          "        (H⁻¹_bb)⁻¹ H⁻¹_b,rest after b (GPTQ/LDLQ), and in b the triangle U with U Uᵀ = (H⁻¹_bb)⁻¹. The "
          "weights\n"
          "        and the importance must be those of the rotated columns, in their own order, rotation_block 0.\n"
          "    lookahead: steps searched beyond a group before its codes are fixed.\n"
          "    beam_width: encodings of a row side by side: 1, 2, 4, 8, 16 or 32. Those that cost least go on from\n"
          "        group to group (M-algorithm), or without feedback each has a scale of its own and the best one is\n"
          "        taken. The time grows with it, the error falls.\n"
          "    threads: 0 is all processors. The result does not depend on it.\n"
          "Returns: (codes uint8 [ceil(n_out / 16), lines, 64], row_scale float16 [n_out]), for base_scale 1 / "
          "code.deviation.\n"
          "Raises: ValueError for NaN or infinite weights and options out of range.");
    m.def("columns_lanes_encode", &encode_columns, py::arg("units"), py::kw_only(), py::arg("code"),
          py::arg("scale_factor") = py::none(), py::arg("feedback") = py::none(), py::arg("threads") = 0,
          "Encodes units float32 [n_in, n_out] in byte lanes of the column layout (docs/reference/format.md): W "
          "transposed,\n"
          "outputs already rotated, units in the order in which they are encoded.\n\n"
          "Args:\n"
          "    code, scale_factor, threads: as for lanes_encode.\n"
          "    feedback: float32 [n_in, n_in]; the error e of unit j changes each later unit l by -e · feedback[l, j]\n"
          "        (GPTQ: H⁻¹_jl / H⁻¹_jj of the units that are left).\n"
          "Returns: (codes uint8 [n_in, streams, lines], input_scale float16 [n_in]), for base_scale 1 / "
          "code.deviation; the "
          "shape is\n"
          "that of all bytes, whose order is strip after strip.\n"
          "Raises: ValueError for NaN or infinite weights and options out of range.");
    m.def("lane_blocks", &blocks, py::arg("code"), py::arg("n_in"), py::arg("groups"),
          "Columns in the order in which lanes_encode decides them, and where in it each block ends.\n\n"
          "Returns: (int32 [n_in], int32 [4 * len(groups)]).\n"
          "Raises: ValueError for groups that do not fit.");
}

} // namespace seeddelta
