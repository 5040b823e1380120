// Models made ready, and their stub files, for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <pybind11/typing.h>

#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bind_metrics.hpp"
#include "bindings/bind_runtime.hpp"
#include "gguf/error.hpp"
#include "gguf/ggml_types.hpp"
#include "runtime/hyperparameters.hpp"
#include "runtime/metrics.hpp"
#include "runtime/served_model.hpp"

namespace py = pybind11;

namespace seeddelta {

namespace {

using Path = std::filesystem::path;

// Names of files in messages may be any bytes.
py::str text_of(const std::string &text) {
    PyObject *made = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "surrogateescape");
    if (made == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(made);
}

const char *exception_of(Fault fault) {
    switch (fault) {
    case Fault::missing:
        return "MissingFileError";
    case Fault::original:
        return "SourceModelError";
    case Fault::settings:
        return "ConfigError";
    case Fault::room:
        return "OutputError";
    case Fault::memory:
        return "OutOfMemoryError";
    default:
        return "FormatError";
    }
}

void translate(std::exception_ptr pointer) {
    try {
        std::rethrow_exception(std::move(pointer));
    } catch (const ModelFileError &error) {
        try {
            const py::object type = py::module_::import("seeddelta.errors").attr(exception_of(error.fault()));
            PyErr_SetObject(type.ptr(), text_of(error.what()).ptr());
        } catch (py::error_already_set &other) {
            other.restore();
        }
    }
}

// Text of a file, which must be UTF-8.
py::str checked_text(const Header &header, std::string_view text, const std::string &what) {
    PyObject *made = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "strict");
    if (made == nullptr) {
        PyErr_Clear();
        header.fail(what + " is not UTF-8; the file is corrupt or truncated, make it again");
    }
    return py::reinterpret_steal<py::str>(made);
}

// The type's word, then the value.
py::bytes bytes_of(const Header &header, const std::string &key) {
    const Value &value = *header.value(key);
    const auto type = static_cast<uint32_t>(value.type);
    std::string bytes(reinterpret_cast<const char *>(&type), sizeof(type));
    bytes.append(reinterpret_cast<const char *>(value.bytes.data()), value.bytes.size());
    if (value.type == ValueType::text) {
        static_cast<void>(checked_text(header, std::string_view(bytes).substr(sizeof(type) + sizeof(uint64_t)),
                                       "the value of " + key));
    }
    return bytes;
}

// Name, shape, type, offset, bytes, number of the file.
using Entry = py::typing::Tuple<py::str, py::typing::Tuple<int64_t, py::ellipsis>, uint32_t, size_t, size_t, size_t>;
using HeaderParts = py::typing::Tuple<py::typing::List<py::typing::Tuple<Path, size_t>>, size_t, size_t,
                                      py::typing::Dict<py::str, py::bytes>, py::typing::List<Entry>>;

HeaderParts read_header(const Path &path) {
    const Header header = [&] {
        const py::gil_scoped_release release;
        return Header::read(path.string());
    }();
    py::list files, tensors;
    std::map<const MappedFile *, size_t> numbers;
    for (const auto &file : header.files()) {
        numbers[file.get()] = files.size();
        files.append(py::make_tuple(Path(file->path()), file->data().size()));
    }
    py::dict values;
    for (const std::string &key : header.keys()) {
        values[checked_text(header, key, "a key")] = bytes_of(header, key);
    }
    for (const TensorInfo &tensor : header.tensors()) {
        const std::vector<int64_t> shape(tensor.ne.rbegin(), tensor.ne.rend());
        tensors.append(py::make_tuple(checked_text(header, tensor.name, "a tensor name"), py::tuple(py::cast(shape)),
                                      tensor.type, tensor.offset, tensor.bytes, numbers.at(tensor.file)));
    }
    return py::make_tuple(files, header.alignment(), header.data_offset(), values, tensors);
}

struct PyServedModel {
    std::shared_ptr<const LoadedGgml> ggml;
    std::unique_ptr<ServedModel> model;
};

std::shared_ptr<PyServedModel> make_model(const Path &path, std::shared_ptr<LoadedGgml> ggml, const Options &options) {
    const py::gil_scoped_release release;
    auto model = std::make_unique<ServedModel>(std::make_unique<WatchedModel>(path.string()), options, *ggml);
    return std::make_shared<PyServedModel>(PyServedModel{std::move(ggml), std::move(model)});
}

std::shared_ptr<PyRegistry> registry_of(const std::shared_ptr<PyServedModel> &m) {
    auto made = std::make_shared<PyRegistry>();
    made->registry = std::shared_ptr<WeightRegistry>(m, &m->model->registry());
    made->ggml = m->ggml;
    return made;
}

Names names_of(const std::vector<TensorDescription> &all) {
    Names names;
    for (const TensorDescription &d : all) {
        names.push_back(d.name);
    }
    return names;
}

// Type, shape and data; none: a placeholder.
using Given = std::tuple<uint32_t, std::vector<int64_t>, std::optional<py::array>>;

StubTensor stub_tensor(const std::string &name, const Given &given) {
    const auto &[number, shape, data] = given;
    const GgmlType *type = ggml_type(number);
    require(type != nullptr && !shape.empty() && shape.back() > 0 && shape.back() % type->block == 0, name,
            "has no such type or shape");
    const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    StubTensor tensor{.name = name,
                      .ne = {shape.rbegin(), shape.rend()},
                      .type = number,
                      .bytes = static_cast<size_t>(elements / type->block * type->bytes)};
    if (data) {
        require((data->flags() & py::array::c_style) != 0 && static_cast<size_t>(data->nbytes()) == tensor.bytes, name,
                "has data of another size");
        tensor.data = static_cast<const uint8_t *>(data->data());
    }
    return tensor;
}

std::shared_ptr<StubFile> make_stub_file(const Path &model, const std::map<std::string, std::string> &kept,
                                         const std::map<std::string, Given> &given,
                                         const std::map<std::string, std::optional<py::bytes>> &changed) {
    ChangedValues values;
    for (const auto &[key, value] : changed) {
        values[key] = value ? std::string(*value) : "";
    }
    std::vector<StubTensor> tensors;
    for (const auto &[name, tensor] : given) {
        tensors.push_back(stub_tensor(name, tensor));
    }
    const py::gil_scoped_release release;
    const Header header = Header::read(model.string());
    for (const auto &[name, source] : kept) {
        const TensorInfo *info = header.tensor(source);
        if (info == nullptr) {
            header.fail("tensor '" + source + "' is not there; was the file changed while it was opened?");
        }
        tensors.push_back({.name = name, .ne = info->ne, .type = info->type, .bytes = info->bytes, .source = info});
    }
    return std::make_shared<StubFile>(header, std::move(tensors), values);
}

} // namespace

void bind_served(py::module_ &m) {
    py::register_local_exception_translator(&translate);
    bind_options(m);
    m.def(
        "check_loadable", [](const Path &model) { check_loadable(Header::read(model.string())); }, py::arg("model"),
        "Raises FormatError for a GGUF model that ends the process when llama.cpp loads it or computes with it.");
    m.def("read_header", &read_header, py::arg("path"),
          "The checked header of a GGUF file, or of all parts of a split one.\n\n"
          "Its files and their sizes, the alignment, where the first one's data begins, the bytes of every value (the "
          "type's\nword first), and name, shape (rows first), type, offset, bytes and number of the file of every "
          "tensor. Raises\nFormatError, MissingFileError.");
    py::class_<StubFile, std::shared_ptr<StubFile>>(
        m, "StubFile",
        "A GGUF file in memory with the metadata of a model, but for the keys seeddelta.*. Placeholders are put "
        "last.\n\n"
        "Args:\n"
        "    kept: names of its tensors, and of those of the model whose data they have.\n"
        "    given: ggml type and shape (rows first) of other tensors, and their data, C-contiguous. None: a "
        "placeholder.\n"
        "    changed: values of metadata that differ, as bytes (the type's word first), None for keys that are left "
        "out.\n"
        "Raises OutputError when there is no memory or disk space for it, FormatError for a file that cannot be read "
        "and for\nwhat llama.cpp does not survive.")
        .def(py::init(&make_stub_file), py::arg("model"), py::arg("kept"), py::arg("given"),
             py::arg("changed") = std::map<std::string, std::optional<py::bytes>>())
        .def_property_readonly("path", &StubFile::path, "For llama.cpp, while the file is open.")
        .def(
            "seal",
            [](StubFile &stub) {
                stub.seal(read_mappings());
                return stub.sealed();
            },
            "Makes the placeholders NaN where this process has the file mapped, and gives back the pages of loading. "
            "False\nwhen it is mapped nowhere. Raises OutOfMemoryError.")
        .def(
            "kept", [](const StubFile &stub) { return stub.kept(read_mappings()); },
            "Address and bytes of what is no placeholder, where this process has the file mapped.")
        .def("close", &StubFile::close, "What is mapped stays.");
    py::class_<PyServedModel, std::shared_ptr<PyServedModel>>(
        m, "ServedModel",
        "The weights of a SeedΔ file, or of an ordinary model by columns. The files are mapped, and watched.\n\n"
        "Raises FormatError, SourceModelError, MissingFileError, ConfigError.")
        .def(py::init(&make_model), py::arg("path"), py::arg("ggml").none(false), py::arg("options"))
        .def_property_readonly("registry", &registry_of)
        .def_property_readonly(
            "served", [](const PyServedModel &s) { return names_of(s.model->served()); },
            "Names of the tensors of a SeedΔ file that are computed from it.")
        .def_property_readonly(
            "dense", [](const PyServedModel &s) { return s.model->dense(); },
            "Names of those that are the fallback's from the start.")
        .def_property_readonly(
            "gates", [](const PyServedModel &s) { return s.model->gates(); },
            "Names of the matrices that share each gate.")
        .def_property_readonly("file_bytes", [](const PyServedModel &s) { return s.model->file_bytes(); })
        .def_property_readonly(
            "changed", [](const PyServedModel &s) { return text_of(s.model->changed()); },
            "Empty, or what is told when a file was changed since.")
        .def_property_readonly(
            "payload", [](const PyServedModel &s) { return s.model->payload(); },
            "Address and bytes of what weights are computed from, where it is mapped.")
        .def(
            "stub_file", [](PyServedModel &s) { return s.model->stub(); }, py::call_guard<py::gil_scoped_release>(),
            "What llama.cpp is to load. Raises OutputError.");
    m.def(
        "metrics",
        [](std::optional<const PyServedModel *> model, const PyHook &hook) {
            Totals totals;
            totals.add(hook.hook);
            return metric_dict(all_metrics(model ? (*model)->model.get() : nullptr, totals));
        },
        py::arg("model"), py::arg("hook"),
        "Of one context: `seeddelta.*`, `statecells.*`, `proc.*` and those of gates (None: an ordinary model), and "
        "those of\nattention that is ours.");
    bind_own_attention(m);
}

} // namespace seeddelta
