#include "bindings/bind_weight.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>

#include "format/column_trellis.hpp"
#include "format/lanes.hpp"
#include "format/rotation.hpp"
#include "bindings/arrays.hpp"
#include "linear/trellis_columns.hpp"
#include "format/proc_sparse.hpp"
#include "seeddelta/check.hpp"
#include "seeddelta/compute.hpp"
#include "seeddelta/encode.hpp"
#include "format/float16.hpp"

namespace seeddelta {

using OptionalArray = std::optional<py::array>;

static void require(bool holds, const std::string &name, const std::string &what) {
    if (!holds) {
        throw py::value_error("tensor '" + name + "': " + what);
    }
}

static const void *adopt(PyWeight &w, const py::array &a) {
    w.keep.push_back(a);
    w.nbytes += a.nbytes();
    return a.data();
}

static void set_row_scale(PyWeight &w, const py::array &row_scale) {
    const bool half = row_scale.itemsize() == 2;
    const int64_t n = w.is_column() ? w.ctx.n_in : w.rows();
    require_array(row_scale, "row_scale", "f", half ? 2 : 4, {n});
    const void *data = adopt(w, row_scale);
    w.ctx.row_scale_f16 = half ? static_cast<const uint16_t *>(data) : nullptr;
    w.ctx.row_scale_f32 = half ? nullptr : static_cast<const float *>(data);
}

static void set_trellis(PyWeight &w, const OptionalArray &codes, int step_bits, int values_per_step,
                        const std::vector<int> &multipliers) {
    require(trellis_rate_supported(step_bits, values_per_step), w.name,
            "unsupported trellis rate: step_bits " + std::to_string(step_bits) + ", values_per_step " +
                std::to_string(values_per_step));
    require(multipliers.size() == static_cast<size_t>(values_per_step), w.name, "one multiplier a value of a step is needed");
    require(codes.has_value(), w.name, "a trellis needs codes");
    w.ctx.step_bits = static_cast<uint32_t>(step_bits);
    w.ctx.values_per_step = static_cast<uint32_t>(values_per_step);
    for (int v = 0; v < values_per_step; ++v) {
        require(multipliers[v] > 0 && multipliers[v] < 65536, w.name, "multiplier out of range");
        w.ctx.multiplier[v] = static_cast<uint16_t>(multipliers[v]);
    }
    if (w.is_column()) {
        ColumnWeight &c = w.columns;
        c.kind = ColumnKind::trellis;
        c.step_bits = w.ctx.step_bits;
        c.values_per_step = w.ctx.values_per_step;
        std::copy_n(w.ctx.multiplier, 2, c.multiplier);
        c.words = column_words(step_bits, c.steps());
        require_array(*codes, "codes", "iu", 2, {c.n_in, c.words, kTileRows});
        c.codes = static_cast<const uint16_t *>(adopt(w, *codes));
        return;
    }
    require_array(*codes, "codes", "iu", 2, {w.ctx.n_experts * w.ctx.n_tiles(), w.ctx.words(), kTileRows});
    w.ctx.codes = static_cast<const uint16_t *>(adopt(w, *codes));
}

static void set_lanes(PyWeight &w, const OptionalArray &codes, int number) {
    const LaneCode *code = number < 0 ? nullptr : lane_code(static_cast<uint32_t>(number));
    require(code != nullptr, w.name, "there is no code of byte lanes with the number " + std::to_string(number));
    require(codes.has_value(), w.name, "base lanes needs codes");
    w.ctx.lane_code = code;
    w.ctx.lane_lines = code->lines(w.ctx.n_in);
    require_array(*codes, "codes", "iu", 1, {w.ctx.n_experts * w.ctx.n_tiles(), w.ctx.lane_lines, kLaneBytes});
    w.ctx.lane_codes = static_cast<const uint8_t *>(adopt(w, *codes));
}

// Before the arrays, whose shapes depend on it.
static void set_column_layout(PyWeight &w, bool only_trellis) {
    require(only_trellis && w.ctx.n_experts == 1, w.name,
            "column layout is for one matrix of a trellis, without column_scale and residual");
    w.columns.n_out = w.ctx.n_out;
    w.columns.n_in = w.ctx.n_in;
    w.columns.rotation_block = w.ctx.rotation_block;
    w.columns.rotation_seed = w.ctx.base_seed;
    w.ctx.columns = &w.columns;
}

static void set_unit_scale(PyWeight &w) {
    for (int64_t j = 0; j < w.ctx.n_in; ++j) {
        // one of the two is there: set_row_scale has set it
        const float scale =
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
            w.ctx.row_scale_f16 != nullptr ? half_to_float(w.ctx.row_scale_f16[j]) : w.ctx.row_scale_f32[j];
        w.unit_scale.push_back(scale * w.ctx.base_scale);
    }
    w.columns.unit_scale = w.unit_scale.data();
}

static void set_column_scale(PyWeight &w, const py::array &scale) {
    require(w.ctx.base == BaseKind::trellis || w.ctx.base == BaseKind::lanes, w.name,
            "column_scale is for a trellis or lanes");
    require_array(scale, "column_scale", "i", 1, {w.ctx.n_experts * w.ctx.n_in});
    w.ctx.column_scale = static_cast<const int8_t *>(adopt(w, scale));
    w.column_factor.resize(static_cast<size_t>(w.ctx.n_experts * w.ctx.n_in));
    for (int64_t i = 0; i < w.ctx.n_experts * w.ctx.n_in; ++i) {
        w.column_factor[static_cast<size_t>(i)] = column_factor_of(w.ctx.column_scale[i]);
    }
    w.ctx.column_factor = w.column_factor.data();
}

static void set_prng_block(PyWeight &w, int block, const OptionalArray &index, const OptionalArray &gain) {
    seeddelta_ctx &c = w.ctx;
    require(block == 8 || block == 16 || block == 32 || block == 64, w.name, "base_block must be 8, 16, 32 or 64");
    c.base_block = static_cast<uint32_t>(block);
    require(index.has_value() || !gain, w.name, "seed_gain without seed_idx");
    if (gain) {
        require_array(*gain, "seed_gain", "i", 1, {c.n_out, c.base_blocks()});
        require_array(*index, "seed_idx", "iu", 2, {c.n_out, c.base_blocks()});
        c.seed_gain = static_cast<const int8_t *>(adopt(w, *gain));
    } else if (index) {
        require_array(*index, "seed_idx", "iu", 2, {c.n_out});
    }
    c.seed_index = index ? static_cast<const uint16_t *>(adopt(w, *index)) : nullptr;
}

static void set_coo(PyWeight &w, const py::array &index, const OptionalArray &value, const OptionalArray &scale) {
    seeddelta_ctx &c = w.ctx;
    const bool wide = index.itemsize() == 4;
    require_array(index, "d_idx", "iu", wide ? 4 : 2, {w.rows(), -1});
    const int64_t k = index.shape(1);
    require(value.has_value(), w.name, "d_idx without d_val");
    const bool half = value->itemsize() == 2;
    require_array(*value, "d_val", half ? "f" : "i", half ? 2 : 1, {w.rows(), k});
    c.scheme = ResidualScheme::coo;
    c.residual_size = static_cast<uint32_t>(k);
    const void *index_data = adopt(w, index);
    c.residual_index = wide ? nullptr : static_cast<const uint16_t *>(index_data);
    c.residual_index32 = wide ? static_cast<const uint32_t *>(index_data) : nullptr;
    const void *value_data = adopt(w, *value);
    if (half) {
        c.residual_vals_f16 = static_cast<const uint16_t *>(value_data);
    } else {
        require(scale.has_value(), w.name, "int8 d_val needs d_scale");
        require_array(*scale, "d_scale", "f", 2, {w.rows()});
        c.residual_vals_i8 = static_cast<const int8_t *>(value_data);
        c.residual_scale = static_cast<const uint16_t *>(adopt(w, *scale));
    }
}

static void set_block(PyWeight &w, const py::array &map, const OptionalArray &value, const OptionalArray &scale) {
    seeddelta_ctx &c = w.ctx;
    require_array(map, "b_map", "iu", 2, {w.rows(), -1});
    const int64_t kept = map.shape(1);
    require(value.has_value() && value->ndim() == 3, w.name, "b_map without b_val of [n_out, kept, block]");
    const int64_t block = value->shape(2);
    require(block == 32 || block == 64, w.name, "a block of b_val must have 32 or 64 columns");
    const bool half = value->itemsize() == 2;
    require_array(*value, "b_val", half ? "f" : "i", half ? 2 : 1, {w.rows(), kept, block});
    c.scheme = ResidualScheme::block;
    c.residual_size = static_cast<uint32_t>(kept);
    c.residual_block = static_cast<uint32_t>(block);
    c.residual_index = static_cast<const uint16_t *>(adopt(w, map));
    const void *value_data = adopt(w, *value);
    if (half) {
        require(!scale, w.name, "float16 b_val has no b_scale");
        c.residual_vals_f16 = static_cast<const uint16_t *>(value_data);
    } else {
        require(scale.has_value(), w.name, "int8 b_val needs b_scale");
        require_array(*scale, "b_scale", "f", 2, {w.rows(), kept});
        c.residual_vals_i8 = static_cast<const int8_t *>(value_data);
        c.residual_scale = static_cast<const uint16_t *>(adopt(w, *scale));
    }
}

static void set_codebook(PyWeight &w, const py::array &dictionary, const OptionalArray &codes,
                         const OptionalArray &value) {
    seeddelta_ctx &c = w.ctx;
    require_array(dictionary, "r_dict", "f", 2, {-1, c.n_in});
    const int64_t atoms = dictionary.shape(0);
    require(atoms > 0 && atoms <= 65536, w.name, "r_dict must have 1 to 65536 atoms");
    require(codes.has_value() && value.has_value(), w.name, "r_dict without r_codes and r_vals");
    require_array(*codes, "r_codes", "iu", 2, {w.rows(), -1});
    const int64_t k = codes->shape(1);
    require_array(*value, "r_vals", "f", 2, {w.rows(), k});
    c.scheme = ResidualScheme::codebook_resid;
    c.residual_size = static_cast<uint32_t>(k);
    c.dictionary_size = static_cast<uint32_t>(atoms);
    c.dictionary = static_cast<const uint16_t *>(adopt(w, dictionary));
    c.residual_index = static_cast<const uint16_t *>(adopt(w, *codes));
    c.residual_vals_f16 = static_cast<const uint16_t *>(adopt(w, *value));
}

static void set_proc_sparse(PyWeight &w, const py::array &map, const OptionalArray &value, const OptionalArray &scale) {
    seeddelta_ctx &c = w.ctx;
    require(value.has_value() && scale.has_value(), w.name, "p_map without p_val and p_scale");
    require(value->ndim() == 3, w.name, "p_val must be [n_out, kept, block]");
    const int64_t kept = value->shape(1);
    const int64_t block = value->shape(2);
    require(block == 32 || block == 64, w.name, "the block of p_val must have 32 or 64 columns");
    require(c.base == BaseKind::none || (c.base == BaseKind::prng_block && c.base_block == block &&
                                         c.seed_index == nullptr && c.rotation_block == 0),
            w.name, "proc_sparse has the base none, or prng_block of the same block with one seed and no rotation");
    require(c.n_experts == 1, w.name, "proc_sparse has no experts");
    c.scheme = ResidualScheme::proc_sparse;
    c.residual_size = static_cast<uint32_t>(kept);
    c.residual_block = static_cast<uint32_t>(block);
    require_array(*value, "p_val", "i", 1, {c.n_out, kept, block});
    require_array(map, "p_map", "iu", 1, {c.n_out, proc_map_bytes(c)});
    require_array(*scale, "p_scale", "f", 2, {c.n_out});
    c.block_map = static_cast<const uint8_t *>(adopt(w, map));
    c.residual_vals_i8 = static_cast<const int8_t *>(adopt(w, *value));
    c.residual_scale = static_cast<const uint16_t *>(adopt(w, *scale));
}

static std::unique_ptr<PyWeight>
make_weight(const std::string &name, int64_t n_out, int64_t n_in, int base_kind, uint64_t base_seed, float base_scale,
            int base_block, int step_bits, int values_per_step, const std::vector<int> &multipliers, int rotation_block,
            const OptionalArray &codes, const py::array &row_scale, const OptionalArray &column_scale,
            const OptionalArray &d_idx,
            const OptionalArray &d_val, const OptionalArray &d_scale, const OptionalArray &b_map,
            const OptionalArray &b_val, const OptionalArray &b_scale, const OptionalArray &r_dict,
            const OptionalArray &r_codes, const OptionalArray &r_vals, const OptionalArray &seed_idx,
            const OptionalArray &seed_gain, const OptionalArray &p_map, const OptionalArray &p_val,
            const OptionalArray &p_scale, int64_t n_experts, const std::string &layout, int lane_code) {
    auto w = std::make_unique<PyWeight>();
    w->name = name;
    constexpr int64_t most = int64_t{1} << 28;
    require(n_out > 0 && n_in > 0 && n_out < most && n_in < most, name, "shape out of range");
    require(n_experts > 0 && n_experts < most / n_out, name, "n_experts out of range");
    require(n_experts == 1 ||
                ((base_kind == static_cast<int>(BaseKind::trellis) || base_kind == static_cast<int>(BaseKind::lanes) ||
                  base_kind == static_cast<int>(BaseKind::none)) &&
                 !r_dict),
            name, "experts have a trellis, lanes or no base, and no codebook");
    w->ctx.n_experts = n_experts;
    w->ctx.n_out = n_out;
    w->ctx.n_in = n_in;
    w->ctx.base_seed = base_seed;
    w->ctx.base_scale = base_scale;
    require(std::isfinite(base_scale), name, "base_scale is not finite");
    require(layout == "row" || layout == "column", name, "layout must be row or column");
    const int64_t rotated = layout == "row" ? n_in : n_out;
    require(rotation_block >= 0 && (rotation_block == 0 || std::has_single_bit(static_cast<unsigned>(rotation_block))) &&
                (rotation_block == 0 || rotated % rotation_block == 0),
            name, "rotation_block must be 0 or a power of two that divides n_in (in column layout n_out)");
    w->ctx.rotation_block = static_cast<uint32_t>(rotation_block);
    if (layout == "column") {
        set_column_layout(*w, base_kind == static_cast<int>(BaseKind::trellis) && !column_scale && !d_idx && !b_map &&
                                  !r_dict && !p_map);
    }
    switch (base_kind) {
    case static_cast<int>(BaseKind::trellis):
        w->ctx.base = BaseKind::trellis;
        set_trellis(*w, codes, step_bits, values_per_step, multipliers);
        break;
    case static_cast<int>(BaseKind::lanes):
        w->ctx.base = BaseKind::lanes;
        set_lanes(*w, codes, lane_code);
        break;
    case static_cast<int>(BaseKind::prng_block):
        w->ctx.base = BaseKind::prng_block;
        set_prng_block(*w, base_block, seed_idx, seed_gain);
        break;
    case static_cast<int>(BaseKind::fht_struct):
        w->ctx.base = BaseKind::fht_struct;
        require(rotation_block <= 1, name, "fht_struct has no rotation");
        break;
    case static_cast<int>(BaseKind::none):
        w->ctx.base = BaseKind::none;
        break;
    default:
        require(false, name, "unknown base kind " + std::to_string(base_kind));
    }
    require(w->ctx.base == BaseKind::prng_block || (!seed_idx && !seed_gain), name, "seed_idx is for prng_block");
    set_row_scale(*w, row_scale);
    if (column_scale) {
        set_column_scale(*w, *column_scale);
    }
    require(d_idx.has_value() + b_map.has_value() + r_dict.has_value() + p_map.has_value() <= 1, name, "more than one residual scheme");
    if (d_idx) {
        set_coo(*w, *d_idx, d_val, d_scale);
    }
    if (b_map) {
        set_block(*w, *b_map, b_val, b_scale);
    }
    if (r_dict) {
        set_codebook(*w, *r_dict, r_codes, r_vals);
    }
    if (p_map) {
        set_proc_sparse(*w, *p_map, p_val, p_scale);
    }
    const std::string wrong = check_contents(w->ctx);
    require(wrong.empty(), name, wrong);
    if (w->is_column()) {
        set_unit_scale(*w);
    }
    return w;
}

static py::array_t<float> matmul(const PyWeight &w, const FloatMatrix &x, int threads, int64_t expert) {
    require(x.ndim() == 2 && x.shape(1) == w.ctx.n_in, w.name,
            "x has shape " + shape_text(x) + "; wanted [n_tokens, " + std::to_string(w.ctx.n_in) + "]");
    require(threads >= 1 && threads <= 1024, w.name, "threads must be between 1 and 1024");
    require(expert >= 0 && expert < w.ctx.n_experts, w.name, "there is no expert of that number");
    const seeddelta_ctx ctx = w.ctx.n_experts == 1 ? w.ctx : w.ctx.expert(expert);
    const int64_t n_tokens = x.shape(0);
    py::array_t<float> y({n_tokens, w.ctx.n_out});
    const float *in = x.data();
    float *out = y.mutable_data();
    {
        // Safe without the GIL: x, y and the weight's arrays are held by this frame, and nothing of Python is touched.
        const py::gil_scoped_release release;
        Workspace workspace;
        ComputeStatus status;
        auto run = [&](int ith) {
            seeddelta_compute_threaded(ctx, in, n_tokens, ctx.n_in * 4, out, ctx.n_out * 4, workspace, ith, threads,
                                       false, status);
        };
        std::vector<std::jthread> pool;
        for (int ith = 1; ith < threads; ++ith) {
            pool.emplace_back(run, ith);
        }
        run(0);
    }
    return y;
}

static py::array_t<float> multiply_active(const PyWeight &w, const FloatMatrix &x, const py::array_t<int32_t> &index) {
    require(w.is_column(), w.name, "is not in column layout");
    require_array(x, "x", "f", 4, {w.ctx.n_in});
    require_array(index, "index", "i", 4, {-1});
    std::vector<float> values;
    for (py::ssize_t i = 0; i < index.size(); ++i) {
        const int32_t unit = index.data()[i];
        require(unit >= 0 && unit < w.ctx.n_in && (i == 0 || index.data()[i - 1] < unit), w.name,
                "index must ascend from 0 to n_in - 1");
        values.push_back(x.data()[unit]);
    }
    py::array_t<float> y(w.ctx.n_out);
    columns_compute_active(w.columns, {index.size(), index.data(), values.data()}, y.mutable_data());
    return y;
}

static py::array_t<float> dequantize(const PyWeight &w, int64_t row_begin, int64_t row_end) {
    if (row_end < 0) {
        row_end = w.rows();
    }
    require(row_begin >= 0 && row_begin <= row_end && row_end <= w.rows(), w.name, "rows out of range");
    py::array_t<float> out({row_end - row_begin, w.ctx.n_in});
    float *data = out.mutable_data();
    const py::gil_scoped_release release;
    for (int64_t row = row_begin; row < row_end;) { // expert by expert
        const int64_t expert = row / w.ctx.n_out;
        const int64_t first = row - expert * w.ctx.n_out;
        const int64_t count = std::min(row_end - row, w.ctx.n_out - first);
        seeddelta_dequantize(w.ctx.n_experts == 1 ? w.ctx : w.ctx.expert(expert), first, first + count, data);
        data += count * w.ctx.n_in;
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
    py::class_<LaneCode>(m, "LaneCode", "A code of base kind lanes (docs/format.md), one of lane_codes().")
        .def_readonly("number", &LaneCode::number, "What files call it.")
        .def_property_readonly("bits", &LaneCode::bits, "Bits a weight.")
        .def_property_readonly(
            "emits", [](const LaneCode &c) { return std::vector<int>(c.emits, c.emits + c.steps); },
            "Values of each step of the pattern: 1 or 2.")
        .def_readonly("unit", &LaneCode::unit, "Standard deviation of the weights in units of the tables.")
        .def_property_readonly("tables", &lane_tables, "int8 [values of the pattern, 2 (A and B), 16].")
        .def("lines", &LaneCode::lines, py::arg("n_in"), "Lines of 64 bytes that a tile of 16 rows has.");
    m.def(
        "lane_codes",
        [] {
            std::vector<const LaneCode *> codes;
            for (uint32_t number = 0; number < kLaneCodes; ++number) {
                codes.push_back(lane_code(number));
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
        "Ŵ = row_scale · (base_scale · v · R + Δ), docs/reference/format.md. The arrays are kept, not copied; shapes, dtypes\n"
        "and index ranges are checked here and a wrong one raises ValueError naming the tensor.\n\n"
        "Args:\n"
        "    codes: uint16 or int16 [ceil(n_out / 16), words, 16], for base_kind 2 (trellis); uint8 or int8\n"
        "        [ceil(n_out / 16), lines, 64], for base_kind 3 (lanes) and the code of the number lane_code.\n"
        "    row_scale: float16 or float32 [n_out].\n"
        "    column_scale: int8 [n_in]; input i is multiplied by 2^(column_scale[i] / 8) before the rotation.\n"
        "    d_idx, d_val, d_scale: coo residual; (u)int16 or (u)int32 [n_out, K], float16 or int8\n"
        "        [n_out, K], float16 [n_out] (with int8 only).\n"
        "    b_map, b_val, b_scale: block residual; (u)int16 [n_out, kept] ascending, float16 or int8\n"
        "        [n_out, kept, 32 or 64], float16 [n_out, kept] (with int8 only).\n"
        "    r_dict, r_codes, r_vals: codebook residual; float16 [M, n_in], (u)int16 and float16 [n_out, k].\n"
        "    p_map, p_val, p_scale: kept blocks of proc_sparse; (u)int8 [n_out, ceil(blocks / 8)] a bit a block, int8\n"
        "        [n_out, kept, 32 or 64], float16 [n_out]. A base prng_block is then 0 outside of them.\n"
        "    seed_idx, seed_gain: chosen seeds of prng_block; (u)int16 [n_out], or (u)int16 and int8\n"
        "        [n_out, ceil(n_in / base_block)].\n"
        "    n_experts: matrices of [n_out, n_in]; arrays hold the rows (tiles of codes, columns) of one after those of "
        "another.\n"
        "    layout: \"row\", or \"column\" for a trellis whose codes are uint16 [n_in, words, 16] and row_scale [n_in].")
        .def(py::init(&make_weight), py::arg("name"), py::arg("n_out"), py::arg("n_in"), py::kw_only(),
             py::arg("base_kind"), py::arg("base_seed") = 0, py::arg("base_scale") = 0.0F, py::arg("base_block") = 64,
             py::arg("step_bits") = 0, py::arg("values_per_step") = 1, py::arg("multipliers") = std::vector<int>{},
             py::arg("rotation_block") = 0, py::arg("codes") = py::none(), py::arg("row_scale"),
             py::arg("column_scale") = py::none(),
             py::arg("d_idx") = py::none(), py::arg("d_val") = py::none(), py::arg("d_scale") = py::none(),
             py::arg("b_map") = py::none(), py::arg("b_val") = py::none(), py::arg("b_scale") = py::none(),
             py::arg("r_dict") = py::none(), py::arg("r_codes") = py::none(), py::arg("r_vals") = py::none(),
             py::arg("seed_idx") = py::none(), py::arg("seed_gain") = py::none(), py::arg("p_map") = py::none(), py::arg("p_val") = py::none(),
             py::arg("p_scale") = py::none(), py::arg("n_experts") = 1, py::arg("layout") = "row",
             py::arg("lane_code") = -1)
        .def("matmul", &matmul, py::arg("x"), py::arg("threads") = 1, py::arg("expert") = 0,
             "y = x Ŵᵀ with int8 activations: float32 [n_tokens, n_in] to float32 [n_tokens, n_out].\n\n"
             "The same bits for every instruction set, number of threads and batch shape.")
        .def(
            "prefetch", [](const PyWeight &w) { return seeddelta_prefetch(w.ctx, 0, 1); },
            "Asks the memory for the first codes that matmul will read, without waiting. False when there are none.")
        .def("multiply_active", &multiply_active, py::arg("x"), py::arg("index"),
             "y = Ŵ x over the units of `index`, int32 [n] ascending, in column layout: float32 [n_in] to [n_out].\n\n"
             "The bits of matmul with x = 0 for the other units.")
        .def("dequantize", &dequantize, py::arg("row_begin") = 0, py::arg("row_end") = -1,
             "Rows [row_begin, row_end) of Ŵ, float32 [rows, n_in]; row_end -1 is n_experts · n_out.")
        .def_readonly("name", &PyWeight::name)
        .def_property_readonly("layout", [](const PyWeight &w) { return w.is_column() ? "column" : "row"; })
        .def_property_readonly("n_out", [](const PyWeight &w) { return w.ctx.n_out; })
        .def_property_readonly("n_experts", [](const PyWeight &w) { return w.ctx.n_experts; })
        .def_property_readonly("n_in", [](const PyWeight &w) { return w.ctx.n_in; })
        .def_readonly("nbytes", &PyWeight::nbytes, "Bytes of all arrays.");
}

} // namespace seeddelta
