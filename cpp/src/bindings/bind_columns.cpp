// Matrices stored by columns and what chooses their units, for Python.
#include "bindings/bind_columns.hpp"

#include <pybind11/typing.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace seeddelta {

static std::unique_ptr<PyColumnWeight> make_py_columns(const std::string &name, const FloatMatrix &matrix, bool signs) {
    require(matrix.ndim() == 2, name, "the matrix is not [n_out, n_in]");
    const int64_t n_in = matrix.shape(1);
    const auto rows = [&, data = matrix.data()](int64_t begin, int64_t end, float *out) {
        std::copy(data + begin * n_in, data + end * n_in, out);
    };
    auto w = std::make_unique<PyColumnWeight>();
    w->name = name;
    w->columns = DenseColumns(name, matrix.shape(0), n_in, rows, signs);
    return w;
}

// What plan_gates makes of settings for a model of one matrix.
static std::unique_ptr<PyGate> make_gate(int64_t n_in, const Settings &given, const std::vector<float> &norm,
                                         float threshold) {
    require(n_in > 0, "", "n_in must be 1 or more");
    require(norm.empty() || static_cast<int64_t>(norm.size()) == n_in, "", "norm must be [n_in]");
    SkipSettings settings;
    settings.force = settings.skip_prompt = true;
    set_all(given, [&](const std::string &name, const std::string &value) { return settings.set(name, value); });
    settings.check();
    const Skippable matrix{.name = "blk.0.ffn_down.weight", .n_out = 1, .n_in = n_in, .by_column = true, .norms = [&] {
                               return norm.empty() ? std::vector<float>(static_cast<size_t>(n_in), 1.0F) : norm;
                           }};
    std::vector<PyGate> gates = plan_gates(settings, {}, {matrix}, {});
    require(!gates.empty(), "", "the settings skip no inputs");
    auto gate = std::make_unique<PyGate>(std::move(gates.front()));
    gate->spec.kwta.norm = gate->norms.empty() ? nullptr : gate->norms.data();
    gate->spec.kwta.threshold = threshold;
    return gate;
}

py::array_t<float> products(const std::string &name, const Operator &op, const FloatMatrix &x, const PyGate *gate,
                            int threads, int64_t batch) {
    const MatrixShape shape = op.shape();
    require(x.ndim() == 2 && x.shape(1) == shape.n_in, name,
            "x has shape " + shape_text(x) + "; wanted [n_tokens, " + std::to_string(shape.n_in) + "]");
    require(threads >= 1 && threads <= 1024, name, "threads must be between 1 and 1024");
    require(gate == nullptr || gate->spec.n_in == shape.n_in, name, "the gate is for another number of inputs");
    const int64_t n_tokens = x.shape(0);
    batch = batch > 0 ? batch : n_tokens;
    py::array_t<float> y({n_tokens, shape.n_out});
    const float *in = x.data();
    float *out = y.mutable_data();
    // Safe without the GIL: x, y, the arrays of the matrix and the gate are held by those who call.
    const py::gil_scoped_release release;
    Workspace workspace;
    ComputeStatus status;
    std::optional<Gate> working;
    OperatorState state;
    if (gate != nullptr) {
        state.gate = &working.emplace(gate->spec);
        state.outputs.resize(static_cast<size_t>(shape.n_out));
    }
    for (int64_t first = 0; first < n_tokens; first += batch) {
        const Work work{.use = WeightUse::product,
                        .n_tokens = std::min(batch, n_tokens - first),
                        .x = in + first * shape.n_in,
                        .x_stride = shape.n_in * 4,
                        .y = out + first * shape.n_out,
                        .y_stride = shape.n_out * 4};
        together(threads, [&](int ith) { op.run(work, state, workspace, ith, threads, status); });
    }
    return y;
}

static py::array_t<float> matmul(const PyColumnWeight &w, const FloatMatrix &x, OptionalGate gate, int threads,
                                 int64_t batch) {
    return products(w.name, *column_operator(w.weight(), nullptr), x, gate.value_or(nullptr), threads, batch);
}

static py::typing::List<py::array_t<int32_t>> select(const PyGate &gate, const FloatMatrix &x) {
    const int64_t n = gate.spec.n_in;
    require(x.ndim() == 2 && x.shape(1) == n, "", "x has shape " + shape_text(x));
    Gate working(gate.spec);
    std::vector<int32_t> score(static_cast<size_t>(n));
    std::vector<uint64_t> bits(static_cast<size_t>(2 * bitmap_words(n)));
    std::vector<float> value(static_cast<size_t>(n));
    py::typing::List<py::array_t<int32_t>> chosen;
    for (int64_t token = 0; token < x.shape(0); ++token) {
        std::vector<int32_t> index(static_cast<size_t>(n));
        bool finite = true;
        const int64_t found =
            working.select(x.data() + token * n, 0, {score.data(), bits.data()}, index.data(), value.data(), finite);
        working.advance(1);
        chosen.append(py::array_t<int32_t>(found, index.data()));
    }
    return chosen;
}

void bind_columns(py::module_ &m) {
    py::class_<PyGate>(
        m, "Gate",
        "What chooses the inputs that a token computes: StatePack's bitmap, then KWTA among what passes.\n\n"
        "Args:\n"
        "    settings: of skipping, by their full names such as kwta.k (docs/guide/skipping.md), for a matrix "
        "ffn_down\n"
        "        alone. A failed check of events holds for a while only (force), and prompts are skipped in, too\n"
        "        (skip_prompt).\n"
        "    norm: [n_in], of the weight's columns; none: ones.\n"
        "    threshold: 0 or more: KWTA keeps the scores above it, however many.\n"
        "Raises ValueError for settings that cannot be.")
        .def(py::init(&make_gate), py::arg("n_in"), py::arg("settings"), py::kw_only(),
             py::arg("norm") = std::vector<float>{}, py::arg("threshold") = -1.0F)
        .def("select", &select, py::arg("x"),
             "Indices chosen for each row of x, float32 [n_tokens, n_in], one token after the other: int32 arrays.");
    py::class_<PyColumnWeight>(
        m, "ColumnWeight",
        "A matrix stored by its inputs: all weights of one input are together, so that inputs can be skipped.\n\n"
        "Args:\n"
        "    matrix: float32 [n_out, n_in], rounded to float16.\n"
        "    signs: a ternary matrix beside it, for gates with state_pack_mlp.aggressive.\n"
        "Raises ValueError naming the tensor.")
        .def(py::init(&make_py_columns), py::arg("name"), py::arg("matrix"), py::kw_only(), py::arg("signs") = false)
        .def(
            "matmul", &matmul, py::arg("x"), py::arg("gate") = py::none(), py::kw_only(), py::arg("threads") = 1,
            py::arg("batch") = 0,
            "y = x Wᵀ over the inputs that the gate chooses: float32 [n_tokens, n_in] to float32 [n_tokens, n_out].\n\n"
            "`batch` tokens are one product (0: all). The bits are those of all inputs with those not chosen set to "
            "0,\n"
            "for every instruction set, number of threads and batch shape.")
        .def_readonly("name", &PyColumnWeight::name)
        .def_property_readonly("n_out", [](const PyColumnWeight &w) { return w.weight().n_out; })
        .def_property_readonly("n_in", [](const PyColumnWeight &w) { return w.weight().n_in; });
    m.def("is_matrix", &is_matrix, py::arg("name"),
          "Whether llama.cpp multiplies by a tensor of this name, or looks rows up in it, if its shape is a matrix's.");
}

} // namespace seeddelta
