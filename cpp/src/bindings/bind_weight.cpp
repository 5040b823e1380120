#include "bindings/bind_weight.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "bindings/arrays.hpp"
#include "bindings/bind_columns.hpp"
#include "format/column_dequantize.hpp"
#include "format/column_lanes.hpp"
#include "format/lanes.hpp"
#include "gating/plan.hpp"
#include "linear/operator.hpp"
#include "seeddelta/compute.hpp"

namespace seeddelta {

static std::unique_ptr<PyWeight> make_weight(const std::string &name, int64_t n_out, int64_t n_in, uint32_t base_kind,
                                             uint64_t base_seed, float base_scale, int base_block, int rotation_block,
                                             int lane_code, int fine_code, int64_t n_experts, const std::string &layout,
                                             const NamedArrays &given) {
    require(layout == "row" || layout == "column", name, "layout must be row or column");
    WeightArrays arrays{.n_out = n_out,
                        .n_in = n_in,
                        .n_experts = n_experts,
                        .by_column = layout == "column",
                        .base_kind = base_kind,
                        .base_seed = base_seed,
                        .base_scale = base_scale,
                        .rotation_block = rotation_block,
                        .base_block = base_block,
                        .lane_code = lane_code,
                        .fine_code = fine_code};
    for (const auto &[suffix, array] : given) {
        const ArrayMember member = array_named(suffix);
        require(member != nullptr, name, "there is no array of the name '" + suffix + "'");
        arrays.*member = view_of(array);
    }
    return std::make_unique<PyWeight>(name, arrays, given);
}

static int64_t bytes_of(const PyWeight &w) {
    int64_t bytes = 0;
    for (const auto &[suffix, array] : w.given) {
        bytes += array.nbytes();
    }
    return bytes;
}

static py::array_t<float> matmul(const PyWeight &w, const FloatMatrix &x, int threads, int64_t expert,
                                 OptionalGate given, int64_t batch) {
    require(expert >= 0 && expert < w.ctx().n_experts, w.name, "there is no expert of that number");
    const seeddelta_ctx ctx = w.ctx().n_experts == 1 ? w.ctx() : w.ctx().expert(expert);
    const PyGate *gate = given.value_or(nullptr);
    const bool sparse = ctx.scheme == ResidualScheme::proc_sparse;
    require(gate == nullptr || sparse, w.name, "a gate is for proc_sparse here");
    const auto op = w.is_column() ? column_operator(w.checked.columns(), nullptr)
                    : sparse      ? proc_operator(ctx, gate == nullptr ? nullptr : &gate->spec)
                                  : row_operator(ctx);
    return products(w.name, *op, x, gate, threads, batch);
}

static py::array_t<float> multiply_active(const PyWeight &w, const FloatMatrix &x, const py::array_t<int32_t> &index) {
    require(w.is_column(), w.name, "is not in column layout");
    require_array(x, "x", "f", 4, {w.ctx().n_in});
    require_array(index, "index", "i", 4, {-1});
    std::vector<float> values;
    for (py::ssize_t i = 0; i < index.size(); ++i) {
        const int32_t unit = index.data()[i];
        require(unit >= 0 && unit < w.ctx().n_in && (i == 0 || index.data()[i - 1] < unit), w.name,
                "index must ascend from 0 to n_in - 1");
        values.push_back(x.data()[unit]);
    }
    py::array_t<float> y(w.ctx().n_out);
    columns_compute_active(w.checked.columns(), {index.size(), index.data(), values.data()}, y.mutable_data());
    return y;
}

static py::array_t<float> dequantize(const PyWeight &w, int64_t row_begin, int64_t row_end) {
    if (row_end < 0) {
        row_end = w.rows();
    }
    require(row_begin >= 0 && row_begin <= row_end && row_end <= w.rows(), w.name, "rows out of range");
    py::array_t<float> out({row_end - row_begin, w.ctx().n_in});
    float *data = out.mutable_data();
    const py::gil_scoped_release release;
    if (w.is_column()) {
        columns_dequantize(w.checked.columns(), row_begin, row_end, data);
        return out;
    }
    for (int64_t row = row_begin; row < row_end;) { // expert by expert
        const int64_t expert = row / w.ctx().n_out;
        const int64_t first = row - expert * w.ctx().n_out;
        const int64_t count = std::min(row_end - row, w.ctx().n_out - first);
        seeddelta_dequantize(w.ctx().n_experts == 1 ? w.ctx() : w.ctx().expert(expert), first, first + count, data);
        data += count * w.ctx().n_in;
        row += count;
    }
    return out;
}

static py::array_t<int8_t> lane_tables(const LaneCode &code) {
    py::array_t<int8_t> tables({code.values, 2, 16});
    for (int v = 0; v < code.values; ++v) {
        std::copy_n(code.tables[v].a, 16, tables.mutable_data(v, 0, 0));
        std::copy_n(code.tables[v].b, 16, tables.mutable_data(v, 1, 0));
    }
    return tables;
}

static void bind_lane_codes(py::module_ &m) {
    py::class_<LaneCode>(m, "LaneCode", "A code of base kind lanes (docs/reference/format.md), one of lane_codes().")
        .def_readonly("number", &LaneCode::number, "What files call it.")
        .def_property_readonly("bits", &LaneCode::bits, "Bits a weight.")
        .def_property_readonly(
            "emits", [](const LaneCode &c) { return std::vector<int>(c.emits, c.emits + c.steps); },
            "Values of each step of the pattern: 1 to 4.")
        .def_readonly("deviation", &LaneCode::deviation, "Standard deviation of the weights in units of the tables.")
        .def_property_readonly("tables", &lane_tables, "int8 [values of the pattern, 2 (A and B), 16].")
        .def_property_readonly(
            "added", [](const LaneCode &c) { return std::vector<int>(c.added, c.added + c.planes); },
            "What the bit of each plane adds to a value.")
        .def_readonly("values_with_bits", &LaneCode::values_with_bits,
                      "How many values of the pattern, from the first on, have bits of the planes.")
        .def("stream_steps", &LaneCode::stream_steps, py::arg("n_in"), "Steps of a stream.")
        .def("lines", &LaneCode::lines, py::arg("n_in"), "Lines of 64 bytes that a tile of 16 rows has.")
        .def_property_readonly("column_lines", &column_lines, "Bytes of a stream in column layout.");
    m.def(
        "lane_codes",
        [] {
            std::vector<const LaneCode *> codes;
            for (const LaneCode &code : lane_codes()) {
                codes.push_back(&code);
            }
            return codes;
        },
        py::return_value_policy::reference, "All codes of base kind lanes, by number.");
}

void bind_weight(py::module_ &m) {
    bind_lane_codes(m);
    py::class_<PyWeight>(
        m, "Weight",
        "One converted matrix: arrays of a SeedΔ file and the product with it.\n\n"
        "Ŵ = row_scale · (base_scale · v · R + Δ), docs/reference/format.md. The arrays are kept, not copied; names, "
        "shapes,\n"
        "dtypes and index ranges are checked here and a wrong one raises ValueError naming the tensor.\n\n"
        "Args:\n"
        "    n_experts: matrices of [n_out, n_in]; arrays hold the rows (tiles of codes, columns) of one after those "
        "of another.\n"
        "    layout: \"row\", or \"column\" for lanes whose codes are uint8 [n_in, streams, lines] in the order of "
        "strips, and\n"
        "        row_scale [n_in].\n"
        "    arrays: by the suffix that files call them by:\n"
        "        codes: uint8 or int8 [ceil(n_out / 16), lines, 64], for base_kind 2 (lanes) and the code of the "
        "number\n"
        "            lane_code.\n"
        "        row_scale: float16 or float32 [n_out]; every weight has it.\n"
        "        column_scale: int8 [n_in]; input i is multiplied by 2^(column_scale[i] / 8) before the rotation.\n"
        "        d_idx, d_val, d_scale: coo residual; (u)int16 or (u)int32 [n_out, K], float16 or int8\n"
        "            [n_out, K], float16 [n_out] (with int8 only).\n"
        "        b_map, b_val, b_scale: block residual; (u)int16 [n_out, kept] ascending, float16 or int8\n"
        "            [n_out, kept, 32 or 64], float16 [n_out, kept] (with int8 only).\n"
        "        r_dict, r_codes, r_vals: codebook residual; float16 [M, n_in], (u)int16 and float16 [n_out, k].\n"
        "        p_map, p_val, p_scale: kept blocks of proc_sparse; (u)int8 [n_out, ceil(blocks / 8)] a bit a block, "
        "int8\n"
        "            [n_out, kept, 32 or 64], float16 [n_out]. A base prng_block is then 0 outside of them.\n"
        "        seed_idx, seed_gain: chosen seeds of prng_block; (u)int16 [n_out], or (u)int16 and int8\n"
        "            [n_out, ceil(n_in / base_block)].")
        .def(py::init(&make_weight), py::arg("name"), py::arg("n_out"), py::arg("n_in"), py::kw_only(),
             py::arg("base_kind"), py::arg("base_seed") = 0, py::arg("base_scale") = 0.0F, py::arg("base_block") = 64,
             py::arg("rotation_block") = 0, py::arg("lane_code") = -1, py::arg("fine_code") = -1,
             py::arg("n_experts") = 1, py::arg("layout") = "row", py::arg("arrays"))
        .def("matmul", &matmul, py::arg("x"), py::arg("threads") = 1, py::arg("expert") = 0, py::kw_only(),
             py::arg("gate") = py::none(), py::arg("batch") = 0,
             "y = x Ŵᵀ with int8 activations: float32 [n_tokens, n_in] to float32 [n_tokens, n_out].\n\n"
             "The same bits for every instruction set, number of threads and batch shape. Of proc_sparse a gate may\n"
             "choose inputs, token by token when `batch` is 1: the bits are those of all inputs with the others 0.")
        .def(
            "prefetch", [](const PyWeight &w) { return seeddelta_prefetch(w.ctx(), 0, 1); },
            "Asks the memory for the first codes that matmul will read, without waiting. False when there are none.")
        .def("multiply_active", &multiply_active, py::arg("x"), py::arg("index"),
             "y = Ŵ x over the units of `index`, int32 [n] ascending, in column layout: float32 [n_in] to [n_out].\n\n"
             "The bits of matmul with x = 0 for the other units.")
        .def(
            "input_norms",
            [](const PyWeight &w) {
                const std::vector<float> norms = input_norms(w.checked);
                return py::array_t<float>(static_cast<py::ssize_t>(norms.size()), norms.data());
            },
            "Norms of the columns of one matrix, float32 [n_in]; in column layout those that the scales say.")
        .def("dequantize", &dequantize, py::arg("row_begin") = 0, py::arg("row_end") = -1,
             "Rows [row_begin, row_end) of Ŵ, float32 [rows, n_in]; row_end -1 is n_experts · n_out.")
        .def_readonly("name", &PyWeight::name)
        .def_property_readonly("layout", [](const PyWeight &w) { return w.is_column() ? "column" : "row"; })
        .def_property_readonly("n_out", [](const PyWeight &w) { return w.ctx().n_out; })
        .def_property_readonly("n_experts", [](const PyWeight &w) { return w.ctx().n_experts; })
        .def_property_readonly("n_in", [](const PyWeight &w) { return w.ctx().n_in; })
        .def_property_readonly("nbytes", &bytes_of, "Bytes of all arrays.");
}

} // namespace seeddelta
