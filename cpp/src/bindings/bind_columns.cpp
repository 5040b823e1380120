// Matrices stored by columns and what chooses their units, for Python.
#include "bindings/bind_columns.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "bindings/arrays.hpp"
#include "gating/patterns.hpp"
#include "seeddelta/compute.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

using OptionalArray = std::optional<py::array>;

static void require(bool holds, const std::string &name, const std::string &what) {
    if (!holds) {
        throw py::value_error((name.empty() ? "" : "tensor '" + name + "': ") + what);
    }
}

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

EventSpec event_of(const std::map<std::string, double> &options) {
    EventSpec e;
    e.enabled = !options.empty();
    for (const auto &[name, value] : options) {
        require(std::isfinite(value) && value >= 0, "", "event " + name + " must be 0 or more");
        const auto whole = static_cast<int>(std::min(value, 1e6));
        if (name == "theta") {
            e.theta = static_cast<float>(value);
        } else if (name == "topk") {
            require(value > 0 && value <= 1, "", "event topk must be above 0 and at most 1");
            e.most = value;
        } else if (name == "quorum") {
            require(value > 0 && value <= 1, "", "event quorum must be above 0 and at most 1");
            e.quorum = static_cast<float>(value);
        } else if (name == "beta") {
            e.beta = static_cast<float>(value);
        } else if (name == "lambda") {
            e.lambda = static_cast<float>(value);
        } else if (name == "age_max") {
            e.age_max = whole;
        } else if (name == "budget_ns") {
            e.budget_ns = value;
        } else if (name == "gap_every") {
            e.gap_every = whole;
        } else if (name == "gap_tolerance") {
            e.gap_tolerance = static_cast<float>(value);
        } else if (name == "rearm") {
            e.rearm = whole;
        } else if (name == "block") {
            require(whole == 1 || whole == 16 || whole == 32 || whole == 64, "", "event block must be 1, 16, 32 or 64");
            e.block = whole;
        } else if (name == "early_checks") {
            e.early_checks = whole;
        } else {
            require(false, "", "event has no option " + name);
        }
    }
    return e;
}

static std::unique_ptr<PyGate> make_gate(int64_t n_in, bool kwta, double keep, int64_t keep_count, int block, int duty,
                                         float temperature, bool renormalize, float threshold,
                                         const OptionalArray &norm, const std::string &pack, float pack_eps,
                                         float pack_relative, float pack_density, float pack_hysteresis,
                                         bool pack_popcount, bool pack_aggressive, bool prompts, int gap_every,
                                         float gap_tolerance, const std::map<std::string, double> &event) {
    auto g = std::make_unique<PyGate>();
    require(n_in > 0, "", "n_in must be 1 or more");
    require(keep > 0 && keep <= 1, "", "keep must be above 0 and at most 1");
    require(keep_count >= 0 && keep_count <= n_in, "", "keep_count must be between 0 and n_in");
    require(block == 1 || block == 16 || block == 32 || block == 64, "", "block must be 1, 16, 32 or 64");
    require(duty >= 1, "", "duty must be 1 or more");
    require(temperature >= 0 && std::isfinite(temperature), "", "temperature must be 0 or more");
    require(!std::isnan(threshold), "", "threshold must be a number");
    require(pack == "none" || pack == "binary" || pack == "ternary" || pack == "zeros", "",
            "pack must be none, binary, ternary or zeros");
    require(pack_eps >= 0 && pack_relative >= 0 && pack_density >= 0 && pack_hysteresis >= 0 && pack_hysteresis < 1, "",
            "pack_eps, pack_relative, pack_density and pack_hysteresis must be 0 or more, the last below 1");
    require(!pack_aggressive || pack == "ternary", "", "pack_aggressive needs a ternary pack");
    g->spec.n_in = n_in;
    g->spec.prompts = prompts;
    require(gap_every >= 0 && gap_tolerance >= 0 && std::isfinite(gap_tolerance), "",
            "gap_every and gap_tolerance must be 0 or more");
    require(gap_every == 0 || (keep_count == 0 && threshold < 0), "",
            "gap_every tunes keep; leave keep_count and "
            "threshold out");
    g->spec.kwta = {.enabled = kwta,
                    .keep = keep,
                    .keep_count = keep_count,
                    .block = block,
                    .duty = duty,
                    .temperature = temperature,
                    .renormalize = renormalize,
                    .threshold = threshold,
                    .gap_every = gap_every,
                    .gap_tolerance = gap_tolerance};
    g->spec.pack = {.enabled = pack != "none",
                    .zeros = pack == "zeros",
                    .ternary = pack == "ternary",
                    .eps = pack_eps,
                    .relative = pack_relative,
                    .density = pack_density,
                    .hysteresis = pack_hysteresis,
                    .vector_popcount = pack_popcount,
                    .aggressive = pack_aggressive};
    g->spec.event = event_of(event);
    require(!g->spec.event.enabled || (pack == "none" && threshold < 0 && block == 1 && !renormalize), "",
            "events exclude pack, threshold, block and renormalize");
    if (norm) {
        require_array(*norm, "norm", "f", 4, {n_in});
        g->keep.push_back(*norm);
        g->spec.kwta.norm = static_cast<const float *>(norm->data());
        for (int64_t i = 0; i < n_in; ++i) {
            require(std::isfinite(g->spec.kwta.norm[i]), "", "norm is not finite");
        }
    }
    return g;
}

// Products of one gate in one state, one after another: what a llama context would do with them.
static py::array_t<float> matmul(const PyColumnWeight &w, const FloatMatrix &x, OptionalGate given, int threads,
                                 int64_t batch) {
    const ColumnWeight &c = w.weight();
    const PyGate *gate = given.value_or(nullptr);
    require(x.ndim() == 2 && x.shape(1) == c.n_in, w.name,
            "x has shape " + shape_text(x) + "; wanted [n_tokens, " + std::to_string(c.n_in) + "]");
    require(threads >= 1 && threads <= 1024, w.name, "threads must be between 1 and 1024");
    require(gate == nullptr || gate->spec.n_in == c.n_in, w.name, "the gate is for another number of inputs");
    const int64_t n_tokens = x.shape(0);
    batch = batch > 0 ? batch : n_tokens;
    py::array_t<float> y({n_tokens, c.n_out});
    const float *in = x.data();
    float *out = y.mutable_data();
    {
        // Safe without the GIL: x, y and the arrays of weight and gate are held by this frame.
        const py::gil_scoped_release release;
        Workspace workspace;
        ComputeStatus status;
        std::optional<Gate> working;
        std::vector<float> state(static_cast<size_t>(c.n_out));
        if (gate != nullptr) {
            working.emplace(gate->spec);
        }
        for (int64_t first = 0; first < n_tokens; first += batch) {
            const int64_t count = n_tokens - first < batch ? n_tokens - first : batch;
            const auto run = [&](int ith) {
                columns_compute_threaded(c, working ? &*working : nullptr, in + first * c.n_in, count, c.n_in * 4,
                                         out + first * c.n_out, c.n_out * 4, workspace, ith, threads, false, status,
                                         state.data());
            };
            std::vector<std::jthread> pool;
            for (int ith = 1; ith < threads; ++ith) {
                pool.emplace_back(run, ith);
            }
            run(0);
        }
    }
    return y;
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

static int64_t popcount(const py::array_t<uint64_t, py::array::c_style | py::array::forcecast> &words) {
    return kernels().gating.popcount(words.data(), words.size());
}

void bind_columns(py::module_ &m) {
    py::class_<PyGate>(
        m, "Gate",
        "What chooses the inputs that a token computes: StatePack's bitmap, then KWTA among what passes.\n\n"
        "Args:\n"
        "    kwta: keep the inputs with the largest scores |x| · norm.\n"
        "    keep, keep_count: fraction of the units, or their number (0: the fraction holds).\n"
        "    block: inputs a unit, scored by their squares: 1, 16, 32 or 64.\n"
        "    duty: choose for every duty-th token only; the others take all.\n"
        "    renormalize, temperature: divide by the share that is kept, counted (0) or by softmax.\n"
        "    threshold: 0 or more: keep the scores above it, however many.\n"
        "    gap_every, gap_tolerance: every so many gated tokens the product is compared with the full one, and keep\n"
        "        and duty are tuned such that the relative error, mean over all tokens, is near the tolerance. 0: "
        "never.\n"
        "    norm: float32 [n_in]. Kept, not copied.\n"
        "    pack: none, binary or ternary bitmap of |x| > max(pack_eps, pack_relative · mean |x| of those that "
        "passed).\n"
        "        Or zeros: all but exact zeros pass, so that the product keeps its bits; of pack_… it takes "
        "pack_popcount only.\n"
        "    pack_aggressive: products of one token are those of signs where the weight has sign_bits (ternary only).\n"
        "    pack_density, pack_hysteresis: above this share the bitmap is off, below (1 - hysteresis) of it on "
        "again.\n"
        "    event: not empty: changes of the inputs are sent. theta, topk, quorum, beta, lambda, age_max, budget_ns,\n"
        "        gap_every, gap_tolerance, rearm, block, early_checks (in which a failure is one for good);\n"
        "        docs/guide/skipping.md.\n"
        "    prompts: choose for products of several tokens, too.\n"
        "Raises ValueError for an option out of range.")
        .def(py::init(&make_gate), py::arg("n_in"), py::kw_only(), py::arg("kwta") = false, py::arg("keep") = 1.0,
             py::arg("keep_count") = 0, py::arg("block") = 1, py::arg("duty") = 1, py::arg("temperature") = 0.0F,
             py::arg("renormalize") = false, py::arg("threshold") = -1.0F, py::arg("norm") = py::none(),
             py::arg("pack") = "none", py::arg("pack_eps") = 1e-4F, py::arg("pack_relative") = 0.0F,
             py::arg("pack_density") = 0.15F, py::arg("pack_hysteresis") = 0.1F, py::arg("pack_popcount") = true,
             py::arg("pack_aggressive") = false, py::arg("prompts") = true, py::arg("gap_every") = 0,
             py::arg("gap_tolerance") = 0.1F, py::arg("event") = std::map<std::string, double>{})
        .def("select", &select, py::arg("x"),
             "Indices chosen for each row of x, float32 [n_tokens, n_in], one token after the other: int32 arrays.");
    py::class_<PyColumnWeight>(
        m, "ColumnWeight",
        "A matrix stored by its inputs: all weights of one input are together, so that inputs can be skipped.\n\n"
        "Args:\n"
        "    matrix: float32 [n_out, n_in], rounded to float16.\n"
        "    signs: a ternary matrix beside it, for gates with pack_aggressive.\n"
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
    m.def("popcount", &popcount, py::arg("words"), "Bits set in an array of uint64, by the active instruction set.");
}

} // namespace seeddelta
