#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings/arrays.hpp"
#include "ggml_host/capture_hook.hpp"
#include "ggml_host/loaded_ggml.hpp"

namespace seeddelta {

namespace {

// The hook and the layout it reads with.
struct PyCapture {
    std::shared_ptr<LoadedGgml> ggml;
    CaptureHook hook;
};

InputSums &sums_of(PyCapture &c, const std::string &name) {
    const auto found = c.hook.sums().find(name);
    if (found == c.hook.sums().end()) {
        throw py::key_error("no input was captured for '" + name + "'");
    }
    return found->second;
}

// [n_experts, n_in]
py::array_t<double> rows_of(const InputSums &s, const std::vector<double> &values) {
    return py::array_t<double>({static_cast<py::ssize_t>(s.counts.size()), static_cast<py::ssize_t>(s.n_in)},
                               values.data());
}

// Rows of both triangles, not divided by the number of tokens.
py::array_t<float> covariance_rows(PyCapture &c, const std::string &name, int64_t begin, int64_t end) {
    InputSums &s = sums_of(c, name);
    if (s.covariance.empty()) {
        throw py::value_error("'" + name + "' was captured without covariance");
    }
    if (begin < 0 || end < begin || end > s.n_in) {
        throw py::value_error("rows " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                              std::to_string(s.n_in));
    }
    py::array_t<float> out({end - begin, s.n_in});
    constexpr int64_t step = InputSums::kRowBlock; // tiles of so many rows and columns lie in the cache
    float *data = out.mutable_data();
    for (int64_t row = begin; row < end; row = (row / step + 1) * step) {
        const int64_t last = std::min((row / step + 1) * step, end);
        for (int64_t column = 0; column < last; column += step) { // these lie in the columns' own rows
            const float *own = s.covariance.data() + s.offset_of(column / step) - column;
            const int64_t stride = s.columns_of(column / step);
            for (int64_t i = row; i < last; ++i) {
                for (int64_t j = column; j < std::min(column + step, i); ++j) {
                    data[(i - begin) * s.n_in + j] = own[(j - column) * stride + i];
                }
            }
        }
        for (int64_t i = row; i < last; ++i) {
            std::copy_n(&s.covariance_at(i, i), s.n_in - i, data + (i - begin) * s.n_in + i);
        }
    }
    return out;
}

py::array_t<float> covariance(PyCapture &c, const std::string &name) {
    return covariance_rows(c, name, 0, sums_of(c, name).n_in);
}

py::array_t<float> values(PyCapture &c, const std::string &name) {
    const auto found = c.hook.taken().find(name);
    if (found == c.hook.taken().end() || found->second.columns == 0) {
        throw py::key_error("no node or matrix '" + name + "' was met");
    }
    const TakenValues &taken = found->second;
    const auto rows = static_cast<py::ssize_t>(taken.values.size()) / taken.columns;
    return py::array_t<float>({rows, static_cast<py::ssize_t>(taken.columns)}, taken.values.data());
}

} // namespace

void bind_capture(py::module_ &m) {
    py::class_<PyCapture>(m, "CaptureHook",
                          "A native cb_eval that sums statistics of the inputs of matrices, for one llama context that "
                          "it must outlive.\n\n"
                          "Args:\n"
                          "    names: matrices whose inputs are wanted.\n"
                          "    covariance: also sum x̂ x̂ᵀ, x̂ = x / |x| · sqrt(n_in), float32 [n_in, n_in] an input.\n"
                          "    threads: of the sums; 0 is all processors. They do not depend on it.\n"
                          "    taken: nodes whose values `values` gives, and matrices whose inputs it gives.")
        .def(py::init([](const std::shared_ptr<LoadedGgml> &ggml, const std::vector<std::string> &names,
                         bool covariance, int threads, const std::vector<std::string> &taken) {
                 return std::unique_ptr<PyCapture>(
                     new PyCapture{ggml, CaptureHook(ggml->abi(), names, covariance, threads, taken)});
             }),
             py::arg("ggml"), py::arg("names"), py::arg("covariance") = true, py::arg("threads") = 0,
             py::arg("taken") = std::vector<std::string>{})
        .def_property_readonly("callback",
                               [](const PyCapture &) { return reinterpret_cast<uintptr_t>(&CaptureHook::callback); })
        .def_property_readonly("user_data", [](PyCapture &c) { return reinterpret_cast<uintptr_t>(&c.hook); })
        .def_property_readonly(
            "error", [](const PyCapture &c) { return c.hook.error(); }, "Empty, or what went wrong.")
        .def_property_readonly(
            "representatives", [](const PyCapture &c) { return c.hook.representatives(); },
            "Matrix -> the matrix under whose name the sums of the same input stand.")
        .def_property_readonly(
            "order", [](const PyCapture &c) { return c.hook.order(); },
            "The representatives in the order of the graph.")
        .def(
            "stop_after", [](PyCapture &c, const std::string &name) { c.hook.stop_after(name); }, py::arg("name"),
            "Leaves out the rest of every graph, once the values of this one of `taken` are copied.")
        .def(
            "tokens", [](PyCapture &c, const std::string &name) { return sums_of(c, name).tokens; }, py::arg("name"))
        .def(
            "nonfinite_tokens", [](PyCapture &c, const std::string &name) { return sums_of(c, name).nonfinite_tokens; },
            py::arg("name"), "Tokens left out because their input held NaN or infinity.")
        .def(
            "counts",
            [](PyCapture &c, const std::string &name) {
                const auto &counts = sums_of(c, name).counts;
                return py::array_t<int64_t>(static_cast<py::ssize_t>(counts.size()), counts.data());
            },
            py::arg("name"), "Inputs in the sums, int64 [n_experts]; [1] for any other matrix.")
        .def(
            "square",
            [](PyCapture &c, const std::string &name) { return rows_of(sums_of(c, name), sums_of(c, name).square); },
            py::arg("name"), "Sum of x², float64 [n_experts, n_in]; [1, n_in] for any other matrix.")
        .def(
            "norm_square",
            [](PyCapture &c, const std::string &name) {
                return rows_of(sums_of(c, name), sums_of(c, name).norm_square);
            },
            py::arg("name"), "Sum of x̂², as `square`.")
        .def("covariance", &covariance, py::arg("name"),
             "Sum of x̂ x̂ᵀ, float32 [n_in, n_in]; of experts that of all together.")
        .def("covariance_rows", &covariance_rows, py::arg("name"), py::arg("begin"), py::arg("end"),
             "Rows of it, float32 [end - begin, n_in].")
        .def("values", &values, py::arg("name"),
             "float32 [rows, columns] of one of `taken` in the last evaluation: rows are tokens.");
}

} // namespace seeddelta
