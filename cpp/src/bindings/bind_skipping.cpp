// The proof that skipping pays, for Python.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "bindings/bind_metrics.hpp"
#include "bindings/bind_runtime.hpp"
#include "ggml_host/proven_gates.hpp"

namespace py = pybind11;

namespace seeddelta {

MetricDict metric_dict(const std::vector<Metric> &metrics) {
    MetricDict found;
    for (const Metric &metric : metrics) {
        if (metric.whole) {
            found[py::str(metric.name)] = static_cast<int64_t>(metric.value);
        } else {
            found[py::str(metric.name)] = metric.value;
        }
    }
    return found;
}

void bind_proof(py::module_ &m) {
    py::class_<ProvenGate>(
        m, "ProvenGate",
        "One kind of gate, of all matrices or layers together.\n\n"
        "`count` is of what it has chosen for and `given_up` of the places whose errors have switched them off, both\n"
        "since loading; `pause` leaves it out, or not, from the next token on. `key` begins its metrics; `name` and,\n"
        "for those places, `remedy` are told to people. `run` tokens with, or without it, follow each other.")
        .def(py::init([](std::string key, std::string name, std::function<uint64_t()> count,
                         std::function<void(bool)> pause, std::function<uint64_t()> given_up,
                         std::function<uint64_t()> places, int run, std::string remedy) {
                 return ProvenGate{std::move(key),
                                   std::move(name),
                                   std::move(count),
                                   std::move(pause),
                                   std::move(given_up),
                                   std::move(places),
                                   run,
                                   std::move(remedy)};
             }),
             py::arg("key"), py::arg("name"), py::arg("count"), py::arg("pause"), py::arg("given_up"),
             py::arg("places"), py::arg("run") = 1, py::arg("remedy") = ProvenGate{}.remedy);
    py::class_<Proof>(
        m, "Proof",
        "The trials of the gates of a context and its attention, and of more, one after the other: those that are "
        "on\nmeanwhile stay on.")
        .def(py::init([](PyHook *hook, const std::vector<ProvenGate> &more) {
                 std::vector<ProvenGate> gates;
                 if (hook != nullptr) {
                     gates = proven_gates(hook->hook);
                 }
                 gates.insert(gates.end(), more.begin(), more.end());
                 return std::make_unique<Proof>(std::move(gates));
             }),
             py::arg("hook").none(true), py::arg("more") = std::vector<ProvenGate>{}, py::keep_alive<1, 2>())
        .def("__bool__", &Proof::any, "Whether there are gates.")
        .def("begin", &Proof::begin, "Before a token is computed alone.")
        .def("end", &Proof::end, py::arg("seconds"), "After it; returns lines for people.")
        .def("cancel", &Proof::cancel, "Where it could not be computed.")
        .def(
            "metrics", [](const Proof &proof) { return metric_dict(proof.metrics()); },
            "Of each gate `X.off` (0: on, 1: it saves too little, 2: its errors are too large), `X.off_places` (where\n"
            "its error was too large), `X.saving` (share of a token's time, 0 until it is known) and "
            "`X.trial_tokens`.")
        .def(
            "reasons",
            [](const Proof &proof) {
                std::map<std::string, std::string> found;
                for (const auto &[key, reason] : proof.reasons()) {
                    found[key] = reason;
                }
                return found;
            },
            "Why gates were switched off, by key.");
}

} // namespace seeddelta
