// Encoders of the kinds (kinds/kinds.hpp).
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings/bind_encode.hpp"
#include "kinds/kinds.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

using CooEntries = py::typing::Tuple<py::array_t<uint32_t>, py::array_t<float>>;

static CooEntries select(const FloatMatrix &delta, int64_t k, const OptionalVector &importance, int threads) {
    require_array(delta, "delta", "f", 4, {-1, -1});
    require_finite(delta, "delta");
    const int64_t n_out = delta.shape(0);
    const int64_t n_in = delta.shape(1);
    if (k < 1 || k > n_in) {
        throw py::value_error("k must be between 1 and n_in (" + std::to_string(n_in) + ")");
    }
    const float *h = importance_data(importance, n_in);
    py::array_t<uint32_t> index({n_out, k});
    py::array_t<float> value({n_out, k});
    uint32_t *index_out = index.mutable_data();
    float *value_out = value.mutable_data();
    {
        const py::gil_scoped_release release; // as in encode
        coo_select(delta.data(), n_out, n_in, k, h, index_out, value_out, threads);
    }
    return py::make_tuple(index, value);
}

using ChosenSeeds = py::typing::Tuple<py::array_t<uint16_t>, std::optional<py::array_t<int8_t>>, int>;

static ChosenSeeds search(const FloatMatrix &weights, uint64_t seed, uint32_t block, int64_t choices,
                          const OptionalVector &importance, const OptionalVector &step, bool prune, int threads) {
    require_array(weights, "weights", "f", 4, {-1, -1});
    require_finite(weights, "weights");
    const int64_t n_out = weights.shape(0);
    const int64_t n_in = weights.shape(1);
    if (choices < 1 || choices > 65536 || !prng_block_width(block)) {
        throw py::value_error("choices must be between 1 and 65536, block 8, 16, 32 or 64");
    }
    const float *h = importance_data(importance, n_in);
    const int64_t units = step ? (n_in + block - 1) / block : 1;
    if (step) {
        require_array(*step, "step", "f", 4, {n_out});
        require_finite(*step, "step");
    }
    std::vector<py::ssize_t> shape{n_out};
    if (step) {
        shape.push_back(units);
    }
    py::array_t<uint16_t> choice(shape);
    std::optional<py::array_t<int8_t>> gain;
    if (step) {
        gain.emplace(shape);
    }
    const SeedSearch spec{seed, block, choices, prune};
    uint16_t *choice_out = choice.mutable_data();
    int8_t *gain_out = gain ? gain->mutable_data() : nullptr;
    int64_t scored = 0;
    {
        const py::gil_scoped_release release; // as in encode
        scored = seed_search(weights.data(), n_out, n_in, spec, h, step ? step->data() : nullptr, choice_out, gain_out,
                             threads);
    }
    return py::make_tuple(choice, gain, scored);
}

static py::array_t<float> base_values(uint32_t base_kind, uint64_t seed, int64_t row_begin, int64_t row_end,
                                      int64_t n_in) {
    if (row_begin < 0 || row_end < row_begin || n_in < 1 || n_in > (int64_t{1} << 18)) {
        throw py::value_error("rows or n_in out of range");
    }
    py::array_t<float> out({row_end - row_begin, n_in});
    float *data = out.mutable_data();
    const py::gil_scoped_release release;
    const seeddelta_ctx ctx{
        .n_out = row_end, .n_in = n_in, .base = static_cast<BaseKind>(base_kind), .base_seed = seed};
    const bool known = Kinds::base(ctx.base, [&]<class K>() {
        std::vector<float> scratch(static_cast<size_t>(K::row_floats(ctx)));
        for (int64_t row = row_begin; row < row_end; ++row) {
            K::row(ctx, row, data + (row - row_begin) * n_in, scratch.data());
        }
    });
    if (!known) {
        throw std::invalid_argument("there is no such base kind: " + std::to_string(base_kind));
    }
    return out;
}

void bind_kinds(py::module_ &m) {
    m.def("coo_select", &select, py::arg("delta"), py::arg("k"), py::arg("importance") = py::none(),
          py::arg("threads") = 0,
          "The k entries of each row of float32 [n_out, n_in] with the largest sqrt(importance)·|Δ|, by ascending "
          "column.\n\n"
          "Returns: (index uint32 [n_out, k], value float32 [n_out, k]).");
    m.def("seed_search", &search, py::arg("weights"), py::kw_only(), py::arg("seed"), py::arg("block"),
          py::arg("choices"), py::arg("importance") = py::none(), py::arg("step") = py::none(), py::arg("prune") = true,
          py::arg("threads") = 0,
          "Chooses seeds of base kind prng_block for float32 [n_out, n_in], one a row or (with step) one a block.\n\n"
          "Choice c stands for the values v of seed + c·0x9E3779B97F4A7C15. The (weighted) squared error of the best\n"
          "multiple of v is minimized, with step that of gain·step·v for whole gains from −127 to 127.\n\n"
          "Args:\n"
          "    block: columns a key: 8, 16, 32 or 64.\n"
          "    choices: seeds tried, 1 to 65536; the first one wins a tie.\n"
          "    importance: float32 [n_in] > 0.\n"
          "    step: float32 [n_out], what a gain of 1 multiplies v by in a row.\n"
          "    prune: leave out seeds that cannot win. The result does not depend on it, nor on threads.\n"
          "Returns: (seed_idx uint16 [n_out], None, scored), with step (seed_idx uint16 [n_out, blocks],\n"
          "    seed_gain int8 [n_out, blocks], scored); `scored` counts the seeds whose error was computed.");
    m.def("base_values", &base_values, py::arg("base_kind"), py::arg("seed"), py::arg("row_begin"), py::arg("row_end"),
          py::arg("n_in"),
          "Values of a base kind that is made of a seed, whole numbers in float32 [row_end - row_begin, n_in]; n_in up "
          "to "
          "2^18.");
}

} // namespace seeddelta
