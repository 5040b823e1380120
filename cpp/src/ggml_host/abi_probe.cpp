// Learns the layout of ggml_tensor: tensors with distinctive values are made through ggml's public functions, in memory
// of our own, and their bytes are searched for those values. A value that is found in no place, or in two, is an error.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "ggml_host/prober.hpp"

namespace seeddelta {

namespace {

// A BLAS device claims the products of a prompt and aborts on a custom operation.
void check_devices(const Symbols &symbols) {
    constexpr int kAccelerator = 3; // GGML_BACKEND_DEVICE_TYPE_ACCEL, after CPU, GPU and IGPU
    const auto device = symbols.get<void *(*)(size_t)>("ggml_backend_dev_get");
    const auto kind = symbols.get<int (*)(void *)>("ggml_backend_dev_type");
    const auto name = symbols.get<const char *(*)(void *)>("ggml_backend_dev_name");
    const size_t count = symbols.get<size_t (*)()>("ggml_backend_dev_count")();
    for (size_t i = 0; i < count; ++i) {
        if (kind(device(i)) == kAccelerator) {
            fail(std::string("its accelerator ") + name(device(i)) + " takes the prompts away from the CPU");
        }
    }
}

void check_types(const Symbols &symbols) {
    const auto name = symbols.get<const char *(*)(int32_t)>("ggml_type_name");
    const auto size = symbols.get<size_t (*)(int32_t)>("ggml_type_size");
    const std::pair<int32_t, std::pair<const char *, size_t>> expected[] = {
        {kTypeF32, {"f32", 4}}, {kTypeF16, {"f16", 2}}, {kTypeI32, {"i32", 4}}, {kTypeBF16, {"bf16", 2}}};
    for (const auto &[type, is] : expected) {
        const char *found = name(type);
        if (found == nullptr || std::string(found) != is.first || size(type) != is.second) {
            fail("ggml type " + std::to_string(type) + " is not " + is.first);
        }
    }
}

void probe_shape(const Prober &p, GgmlAbi &abi) {
    const void *f32 = p.tensor(kTypeF32, 3, 5, 7, 11);
    const void *f16 = p.tensor(kTypeF16, 3, 5, 7, 11);
    const void *i32 = p.tensor(kTypeI32, 3, 5, 7, 11);
    abi.type = p.find("type", 4, 4, [&](size_t o) {
        return GgmlAbi::read<int32_t>(f32, o) == kTypeF32 && GgmlAbi::read<int32_t>(f16, o) == kTypeF16 &&
               GgmlAbi::read<int32_t>(i32, o) == kTypeI32;
    });
    const int64_t ne[4] = {3, 5, 7, 11};
    const int64_t nb[4] = {4, 12, 60, 420};
    abi.ne = p.find("ne", sizeof(ne), 8, [&](size_t o) { return bytes_at(f32, o, ne, sizeof(ne)); });
    abi.nb = p.find("nb", sizeof(nb), 8, [&](size_t o) { return bytes_at(f32, o, nb, sizeof(nb)); });
}

void probe_data_and_name(const Prober &p, const Symbols &symbols, GgmlAbi &abi) {
    const auto get_data = symbols.get<void *(*)(const void *)>("ggml_get_data");
    const auto get_name = symbols.get<const char *(*)(const void *)>("ggml_get_name");
    void *a = p.tensor(kTypeF32, 4, 4);
    void *b = p.tensor(kTypeF32, 4, 4);
    abi.data = p.find("data", sizeof(void *), sizeof(void *), [&](size_t o) {
        return GgmlAbi::read<void *>(a, o) == get_data(a) && GgmlAbi::read<void *>(b, o) == get_data(b);
    });
    symbols.get<void *(*)(void *, const char *)>("ggml_set_name")(a, "seeddelta.probe");
    const auto offset = reinterpret_cast<uintptr_t>(get_name(a)) - reinterpret_cast<uintptr_t>(a);
    if (offset + kMaxName > p.overhead() || !bytes_at(a, offset, "seeddelta.probe", sizeof("seeddelta.probe"))) {
        fail("field 'name' of ggml_tensor was not found");
    }
    abi.name = offset;
}

// any recognizable values
constexpr uint64_t kUserdata = 0x5EEDDE17A0C0FFEEULL;
constexpr int32_t kTasks = 0x1234567;

// Where a custom operation has its function, its userdata and the number of its tasks, and what else it sets. `marked`
// has recognizable ones, `pattern` is the one that ours are made from, `plain` no operation.
void probe_custom(const Prober &p, CustomFunction function, const void *plain, const void *marked, const void *pattern,
                  GgmlAbi &abi) {
    const size_t at_function = p.find("custom function", sizeof(function), 4,
                                      [&](size_t o) { return bytes_at(marked, o, &function, sizeof(function)); });
    const size_t at_userdata = p.find("custom userdata", sizeof(kUserdata), 4,
                                      [&](size_t o) { return bytes_at(marked, o, &kUserdata, sizeof(kUserdata)); });
    const size_t at_tasks = p.find("custom n_tasks", sizeof(kTasks), 4,
                                   [&](size_t o) { return bytes_at(marked, o, &kTasks, sizeof(kTasks)); });
    abi.params = std::min({at_function, at_userdata, at_tasks});
    const size_t end =
        std::max({at_function + sizeof(function), at_userdata + sizeof(kUserdata), at_tasks + sizeof(kTasks)});
    if (end - abi.params > 64 || (abi.params < abi.src + 2 * sizeof(void *) && abi.src < end)) {
        fail("the parameters of a custom operation are not in one place");
    }
    // A custom node must differ from a plain tensor in its operation, parameters, sources and data only.
    const auto expected = [&](size_t o) {
        return (o >= abi.op && o < abi.op + 4) || (o >= abi.params && o < end) ||
               (o >= abi.src && o < abi.src + 2 * sizeof(void *)) || (o >= abi.data && o < abi.data + sizeof(void *));
    };
    const size_t tensor_end = abi.name; // name is the last field that both share
    for (size_t o = 0; o < tensor_end; ++o) {
        if (!expected(o) && GgmlAbi::read<uint8_t>(pattern, o) != GgmlAbi::read<uint8_t>(plain, o)) {
            fail("a custom operation sets the unknown byte " + std::to_string(o) + " of ggml_tensor");
        }
    }
    const auto *first = static_cast<const uint8_t *>(pattern);
    abi.params_custom.assign(first + abi.params, first + end);
    abi.params_userdata = at_userdata - abi.params;
    abi.params_function = at_function - abi.params;
}

// Operation numbers come from tensors made by the operation itself, so ggml_op_name is only asked for numbers that
// exist.
void probe_operations(const Prober &p, const Symbols &symbols, CustomFunction function, GgmlAbi &abi) {
    const auto mul_mat = symbols.get<void *(*)(void *, void *, void *)>("ggml_mul_mat");
    const auto mul_mat_id = symbols.get<void *(*)(void *, void *, void *, void *)>("ggml_mul_mat_id");
    const auto get_rows = symbols.get<void *(*)(void *, void *, void *)>("ggml_get_rows");
    const auto custom = symbols.get<void *(*)(void *, int32_t, int64_t, int64_t, int64_t, int64_t, void **, int,
                                              CustomFunction, int, void *)>("ggml_custom_4d");
    void *a = p.tensor(kTypeF32, 4, 4);
    void *b = p.tensor(kTypeF32, 4, 4);
    void *rows = p.tensor(kTypeI32, 4, 1);
    void *args[2] = {b, a};
    const int kAllTasks = -1; // GGML_N_TASKS_MAX
    const auto make_custom = [&](int tasks, uint64_t userdata) {
        return p.checked(
            custom(p.context(), kTypeF32, 4, 4, 1, 1, args, 2, function, tasks, reinterpret_cast<void *>(userdata)),
            "a tensor of ggml_custom_4d");
    };
    const void *product = p.checked(mul_mat(p.context(), a, b), "a tensor of ggml_mul_mat");
    void *experts = p.tensor(kTypeF32, 4, 4, 2);
    void *inputs = p.tensor(kTypeF32, 4, 2, 3);
    void *ids = p.tensor(kTypeI32, 2, 3);
    void *const of_experts[3] = {experts, inputs, ids};
    const void *chosen = p.checked(mul_mat_id(p.context(), experts, inputs, ids), "a tensor of ggml_mul_mat_id");
    const void *taken = p.checked(get_rows(p.context(), a, rows), "a tensor of ggml_get_rows");
    const void *marked = make_custom(kTasks, kUserdata);
    const void *pattern = make_custom(kAllTasks, 0);

    abi.src = p.find("src", sizeof(of_experts), sizeof(void *), [&](size_t o) {
        void *const forward[2] = {a, b};
        return bytes_at(product, o, forward, sizeof(forward)) && bytes_at(marked, o, args, sizeof(args)) &&
               GgmlAbi::read<void *>(taken, o) == a && GgmlAbi::read<void *>(taken, o + sizeof(void *)) == rows &&
               bytes_at(chosen, o, of_experts, sizeof(of_experts));
    });
    abi.op = p.find("op", 4, 4, [&](size_t o) {
        const int32_t is[4] = {GgmlAbi::read<int32_t>(a, o), GgmlAbi::read<int32_t>(product, o),
                               GgmlAbi::read<int32_t>(taken, o), GgmlAbi::read<int32_t>(marked, o)};
        const auto small = [](int32_t v) { return v > 0 && v < 1024; };
        return is[0] == 0 && small(is[1]) && small(is[2]) && small(is[3]) && is[1] != is[2] && is[2] != is[3] &&
               is[1] != is[3] && GgmlAbi::read<int32_t>(b, o) == 0 && GgmlAbi::read<int32_t>(pattern, o) == is[3];
    });
    abi.op_none = abi.op_of(a);
    abi.op_mul_mat = abi.op_of(product);
    abi.op_mul_mat_id = abi.op_of(chosen);
    abi.op_get_rows = abi.op_of(taken);
    abi.op_custom = abi.op_of(marked);
    const std::pair<int32_t, const char *> names[] = {{abi.op_none, "NONE"},
                                                      {abi.op_mul_mat, "MUL_MAT"},
                                                      {abi.op_mul_mat_id, "MUL_MAT_ID"},
                                                      {abi.op_get_rows, "GET_ROWS"},
                                                      {abi.op_custom, "CUSTOM"}};
    for (const auto &[number, name] : names) {
        const char *found = abi.op_name(number);
        if (found == nullptr || std::string(found) != name) {
            fail(std::string("ggml_op_name does not know ") + name);
        }
    }
    probe_custom(p, function, a, marked, pattern, abi);
}

// Bytes of a tensor that a call changes, which must be one int32.
template <class Call>
size_t changed_int(const Prober &p, const void *tensor, const char *field, Call call) {
    const auto *bytes = static_cast<const uint8_t *>(tensor);
    const std::vector<uint8_t> before(bytes, bytes + p.overhead());
    call();
    return p.find(field, 4, 4, [&](size_t o) { return !bytes_at(tensor, o, before.data() + o, 4); });
}

NodeForm form_of(const GgmlAbi &abi, const void *node, int sources, size_t hint) {
    NodeForm form;
    const auto *bytes = static_cast<const uint8_t *>(node);
    form.bytes.assign(bytes + abi.params_begin(), bytes + abi.src);
    form.known.assign(form.bytes.size(), 0);
    form.sources = sources;
    form.hint = hint;
    for (const size_t at : {abi.flags, hint}) {
        for (size_t o = at; o < at + 4 && o >= abi.params_begin() && o < abi.src; ++o) {
            form.known[o - abi.params_begin()] = 1;
        }
    }
    return form;
}

// Where everything lies that a node says beyond its operation and its sources, and what plain nodes have there.
void probe_forms(const Prober &p, const Symbols &symbols, GgmlAbi &abi) {
    void *a = p.tensor(kTypeF32, 4, 4);
    void *b = p.tensor(kTypeF32, 4, 4);
    const void *view = p.checked(
        symbols.get<void *(*)(void *, void *, int64_t, size_t)>("ggml_view_1d")(p.context(), a, 4, 16), "a view");
    abi.view_src = p.find("view_src", sizeof(void *), sizeof(void *),
                          [&](size_t o) { return o != abi.src && GgmlAbi::read<void *>(view, o) == a; });
    const size_t offset = 16; // behind it lies where the view begins
    if (abi.params_begin() > abi.params || abi.params >= abi.src || abi.view_src <= abi.src || abi.n_src() < 5 ||
        abi.n_src() > 64 || abi.data != abi.view_src + 16 ||
        !bytes_at(view, abi.view_src + 8, &offset, sizeof(offset))) {
        fail("the fields of ggml_tensor have another order");
    }
    abi.flags = changed_int(p, b, "flags", [&] { symbols.get<void (*)(void *)>("ggml_set_output")(b); });
    void *c = p.tensor(kTypeF32, 4, 4);
    const auto mul_mat = symbols.get<void *(*)(void *, void *, void *)>("ggml_mul_mat");
    void *product = p.checked(mul_mat(p.context(), a, c), "a tensor of ggml_mul_mat");
    void *precise = p.checked(mul_mat(p.context(), a, c), "a tensor of ggml_mul_mat");
    constexpr int32_t kPrecise = 10; // GGML_PREC_F32
    const size_t hint = changed_int(p, precise, "precision", [&] {
        symbols.get<void (*)(void *, int32_t)>("ggml_mul_mat_set_prec")(precise, kPrecise);
    });
    if (GgmlAbi::read<int32_t>(precise, hint) != kPrecise || hint < abi.params_begin() || hint >= abi.src) {
        fail("ggml_mul_mat_set_prec stores the precision in an unknown way");
    }
    void *rows = p.tensor(kTypeI32, 4, 1);
    void *experts = p.tensor(kTypeF32, 4, 4, 2);
    void *inputs = p.tensor(kTypeF32, 4, 2, 3);
    void *ids = p.tensor(kTypeI32, 2, 3);
    abi.form_mul_mat = form_of(abi, product, 2, hint);
    abi.form_mul_mat_id = form_of(
        abi,
        symbols.get<void *(*)(void *, void *, void *, void *)>("ggml_mul_mat_id")(p.context(), experts, inputs, ids), 3,
        0);
    abi.form_get_rows =
        form_of(abi, symbols.get<void *(*)(void *, void *, void *)>("ggml_get_rows")(p.context(), a, rows), 2, 0);
    for (const NodeForm *form : {&abi.form_mul_mat, &abi.form_mul_mat_id, &abi.form_get_rows}) {
        for (size_t i = 0; i < form->bytes.size(); ++i) {
            if (form->known[i] == 0 && form->bytes[i] != 0) { // ours would not know what it means
                fail("a plain product or look-up has parameters");
            }
        }
    }
}

// The widening of F16 and BF16 rows are public functions: where the table of F16 points to the one and the table of
// BF16 to the other is the field of the widening of every type.
void probe_type_traits(const Symbols &symbols, GgmlAbi &abi) {
    abi.type_traits = symbols.get<const void *(*)(int32_t)>("ggml_get_type_traits");
    const auto f16 = symbols.get<uintptr_t>("ggml_fp16_to_fp32_row");
    const auto bf16 = symbols.get<uintptr_t>("ggml_bf16_to_fp32_row");
    const void *at_f16 = abi.type_traits(kTypeF16);
    const void *at_bf16 = abi.type_traits(kTypeBF16);
    const auto size = static_cast<const uint8_t *>(at_f16) - static_cast<const uint8_t *>(abi.type_traits(kTypeF32));
    if (size < 32 || size > 512) {
        fail("the size of ggml_type_traits is " + std::to_string(size));
    }
    for (size_t o = 0; o + sizeof(uintptr_t) <= static_cast<size_t>(size); o += sizeof(uintptr_t)) {
        if (GgmlAbi::read<uintptr_t>(at_f16, o) == f16 && GgmlAbi::read<uintptr_t>(at_bf16, o) == bf16) {
            abi.to_float = o;
            return;
        }
    }
    fail("field 'to_float' of ggml_type_traits was not found");
}

bool has_amx() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("flags")) {
            return line.find(" amx_int8") != std::string::npos;
        }
    }
    return false;
}

// The CPU backend of x86 repacks none of these: a repacked type would be copied into memory of its own. Q1_0 is
// repacked on ARM, Q4_1 with AMX. ggml looks a number up without a check, so those that it may not have are never asked
// for.
void choose_placeholders(const std::map<std::string, uintptr_t> &table, GgmlAbi &abi) {
#if defined(__x86_64__)
    const bool x86 = true;
#else
    const bool x86 = false;
#endif
    const PlaceholderType candidates[] = {{41, 128, 18}, {42, 64, 18}, {3, 32, 20}};
    const bool fits[] = {x86, true, !has_amx()};
    for (size_t i = 0; i < std::size(candidates); ++i) {
        const PlaceholderType &type = candidates[i];
        const auto came_with = table.find(ggml_known_symbols()[i]);
        if (fits[i] && came_with != table.end() && came_with->second != 0 &&
            abi.block_size(type.number) == type.block &&
            static_cast<int64_t>(abi.type_size(type.number)) == type.bytes) {
            abi.placeholders.push_back(type);
        }
    }
    abi.placeholders.push_back({kTypeF16, 1, 2});
}

} // namespace

const std::vector<std::string> &ggml_known_symbols() {
    static const std::vector<std::string> names = {"dequantize_row_q1_0", "dequantize_row_q2_0", "dequantize_row_q4_1"};
    return names;
}

const std::vector<std::string> &ggml_required_symbols() {
    static const std::vector<std::string> names = {"ggml_init",
                                                   "ggml_free",
                                                   "ggml_get_mem_size",
                                                   "ggml_get_no_alloc",
                                                   "ggml_tensor_overhead",
                                                   "ggml_new_tensor_4d",
                                                   "ggml_mul_mat",
                                                   "ggml_mul_mat_id",
                                                   "ggml_get_rows",
                                                   "ggml_custom_4d",
                                                   "ggml_view_1d",
                                                   "ggml_set_output",
                                                   "ggml_mul_mat_set_prec",
                                                   "ggml_op_name",
                                                   "ggml_type_name",
                                                   "ggml_type_size",
                                                   "ggml_blck_size",
                                                   "ggml_get_data",
                                                   "ggml_get_name",
                                                   "ggml_set_name",
                                                   "ggml_get_type_traits",
                                                   "ggml_fp16_to_fp32_row",
                                                   "ggml_bf16_to_fp32_row",
                                                   "ggml_backend_dev_count",
                                                   "ggml_backend_dev_get",
                                                   "ggml_backend_dev_type",
                                                   "ggml_backend_dev_name"};
    return names;
}

GgmlAbi probe_ggml(const std::map<std::string, uintptr_t> &table, CustomFunction function) {
    const Symbols symbols(table);
    for (const std::string &name : ggml_required_symbols()) {
        symbols.get<uintptr_t>(name.c_str());
    }
    GgmlAbi abi;
    abi.op_name = symbols.get<const char *(*)(int32_t)>("ggml_op_name");
    abi.block_size = symbols.get<int64_t (*)(int32_t)>("ggml_blck_size");
    abi.type_size = symbols.get<size_t (*)(int32_t)>("ggml_type_size");
    check_devices(symbols);
    check_types(symbols);
    const Prober prober(symbols);
    abi.overhead = prober.overhead();
    probe_shape(prober, abi);
    probe_data_and_name(prober, symbols, abi);
    probe_operations(prober, symbols, function, abi);
    probe_forms(prober, symbols, abi);
    probe_type_traits(symbols, abi);
    choose_placeholders(table, abi);
    return abi;
}

} // namespace seeddelta
