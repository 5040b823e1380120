#include "runtime/host.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "gguf/error.hpp"
#include "runtime/metrics.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

namespace {

// Whether a file that cannot be read as a model says that it is a SeedΔ one.
bool claims_to_be_ours(const std::string &path) {
    constexpr size_t kLooked = size_t{1} << 25;
    constexpr std::string_view kKey = "seeddelta.enabled";
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return false;
    }
    std::string text(kLooked, '\0');
    const ssize_t count = pread(fd, text.data(), text.size(), 0);
    close(fd);
    return count > 0 && memmem(text.data(), static_cast<size_t>(count), kKey.data(), kKey.size()) != nullptr;
}

// Attention is llama.cpp's where it may be and cannot be ours. Throws ModelFileError where it must be ours.
void settle_attention(Options &options) {
    if (options.attention == AttentionMode::llama) {
        return;
    }
    try {
        static_cast<void>(LlamaLibrary::loaded().attention());
    } catch (const ModelFileError &error) {
        if (!options.asks_for_attention().empty()) {
            throw;
        }
        if (options.verbose) {
            say({error.what(), "; llama.cpp computes all of it"});
        }
        options.attention = AttentionMode::llama;
    }
}

} // namespace

Host &Host::instance() {
    static auto *host = new Host;
    return *host;
}

bool Host::state_of(const char *path, FileState &state) {
    struct stat status = {};
    if (path == nullptr || stat(path, &status) != 0 || !S_ISREG(status.st_mode)) {
        return false;
    }
    state = {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
    return true;
}

std::shared_ptr<ServedModel> Host::open(const char *path, const char *given) {
    FileState state;
    if (!state_of(path, state)) {
        return nullptr; // llama.cpp says what is wrong
    }
    const std::optional<std::string> settings = given == nullptr ? std::nullopt : std::optional<std::string>(given);
    const std::scoped_lock lock(mutex_);
    for (const Entry &entry : models_) {
        if (entry.state == state && entry.settings == settings && entry.model->changed().empty()) {
            return entry.model;
        }
    }
    const auto read_options = [&] { return settings ? Options::of(*settings) : Options::from_environment(); };
    bool columns = false, skips = false;
    try {
        const Options options = read_options();
        columns = options.columns;
        skips = options.skipping.skips();
    } catch (const ModelFileError &) { // of ordinary models it is said when one of them computes
    }
    std::unique_ptr<WatchedModel> file;
    bool ordinary = false;
    try {
        file = std::make_unique<WatchedModel>(path);
        ordinary = !is_seeddelta(file->header());
    } catch (const ModelFileError &) {
        if (columns || claims_to_be_ours(path)) {
            throw;
        }
        return nullptr;
    }
    if (ordinary && !columns) {
        if (skips && models_.empty()) { // else the settings may be those of a SeedΔ model, and this its draft
            file->header().fail("kwta, state_pack_mlp and event skip inputs of matrices stored by columns; give "
                                "--columns f16 (columns=f16)",
                                Fault::settings);
        }
        return nullptr;
    }
    prune(state);
    Options options = read_options();
    settle_attention(options);
    auto model = std::make_shared<ServedModel>(std::move(file), options, LlamaLibrary::loaded().ggml());
    models_.push_back({state, settings, model});
    if (options.verbose) {
        say({model->path(), ": ", std::to_string(model->registry().weights().size()), " weights are computed from it, ",
             std::to_string(model->dense().size()), " from the fallback"});
    }
    return model;
}

// Models that nobody has loaded any more, to make room for another. That of an attempt (no memory was allocated for it)
// is one of them.
void Host::prune(const FileState &wanted) {
    if (models_.empty()) {
        return;
    }
    const std::vector<Mapping> mappings = read_mappings();
    std::erase_if(models_, [&](const Entry &entry) {
        return !entry.model->prune(mappings) && entry.model.use_count() == 1 && !(entry.state == wanted);
    });
}

std::shared_ptr<StubFile> Host::stub_of(ServedModel &model) {
    const std::scoped_lock lock(mutex_);
    model.prune(read_mappings());
    return model.stub();
}

void Host::loaded(ServedModel &model, StubFile &stub) {
    const std::scoped_lock lock(mutex_);
    stub.seal(read_mappings());
    if (model.options().verbose) {
        say({model.path(), stub.sealed() ? ": loaded" : ": looked at, not loaded"});
    }
}

void Host::look_at(const void *tensor, bool as_weight, const std::vector<Mapping> &mappings, Found &found) const {
    const GgmlAbi &abi = LlamaLibrary::loaded().abi();
    const void *root = tensor == nullptr ? nullptr : abi.root_of(tensor);
    if (root == nullptr || abi.op_of(root) != abi.op_none || abi.data_of(root) == nullptr) {
        return;
    }
    const Mapping *mapping = mapping_of(mappings, abi.data_of(root));
    const std::string_view name(abi.name_of(root), strnlen(abi.name_of(root), kMaxName));
    for (const Entry &entry : models_) {
        if (mapping != nullptr && entry.model->owns(*mapping)) {
            found.model = entry.model;
            return;
        }
        // Of others' data at most its first bytes are looked at, and only where there is such a weight.
        const RegisteredWeight *weight = entry.model->registry().find(name);
        if (weight == nullptr || mapping == nullptr || !mapping->readable) {
            continue;
        }
        const int32_t type = abi.placeholder(weight->op->shape().n_in).number;
        const auto left = mapping->end - reinterpret_cast<uintptr_t>(abi.data_of(root));
        if (abi.type_of(root) == type && StubFile::is_placeholder(abi.data_of(root), left)) {
            found.misplaced = entry.model->path() + ": the weight '" + std::string(name) + "'";
        }
    }
    found.ordinary = found.ordinary || (as_weight && name.ends_with(".weight"));
}

Host::Found Host::find_model(void *graph) const {
    const LlamaLibrary &library = LlamaLibrary::loaded();
    const GgmlAbi &abi = library.abi();
    const std::vector<Mapping> mappings = read_mappings();
    Found found;
    const int nodes = library.graph_size(graph);
    for (int i = 0; i < nodes && found.model == nullptr; ++i) {
        const void *node = library.graph_node(graph, i);
        const int32_t op = abi.op_of(node);
        const bool product = op == abi.op_mul_mat || op == abi.op_mul_mat_id || op == abi.op_get_rows;
        for (int s = 0; s < abi.n_src() && found.model == nullptr; ++s) {
            look_at(abi.src_of(node, s), product && s == 0, mappings, found);
        }
    }
    return found;
}

OrdinaryModels &Host::ordinary_models() {
    if (!ordinary_) {
        ordinary_.emplace();
        if (!ordinary_->options().metrics_json.empty()) {
            write_metrics_at_exit();
        }
    }
    return *ordinary_;
}

// Null where llama.cpp computes alone, or something is wrong.
ServedContext *Host::context_of(void *scheduler, void *graph, std::string &wrong) {
    const std::scoped_lock lock(mutex_);
    const bool watched = watched_.contains(scheduler);
    auto known = contexts_.find(scheduler);
    if (known == contexts_.end()) {
        Found found;
        if (models_.empty()) {
            found.ordinary = true;
        } else {
            found = find_model(graph);
        }
        if (found.model != nullptr) {
            known = contexts_.emplace(scheduler, std::make_unique<ServedContext>(found.model)).first;
        } else if (!found.misplaced.empty()) {
            wrong = found.misplaced +
                    " is not where the model was mapped; load it with mmap (--load-mode mmap, no --no-mmap)";
            return nullptr;
        } else if (found.ordinary) {
            known = contexts_.emplace(scheduler, ordinary_models().make(watched)).first;
        } else {
            return nullptr; // it may compute with weights later
        }
    }
    ServedContext *context = known->second.get();
    if (context == nullptr || context->model() == nullptr) {
        wrong = ordinary_models().refusal(watched);
    } else if (watched) {
        wrong = context->where() +
                ": the program looks at the graph's nodes one by one (an evaluation callback, as in llama-imatrix), "
                "which those of SeedΔ weights do not allow; use `seeddelta imatrix`, or the original model";
    }
    return watched ? nullptr : context;
}

int Host::compute(void *scheduler, void *graph, ComputeGraph real) noexcept {
    try {
        std::string wrong;
        ServedContext *context = context_of(scheduler, graph, wrong);
        if (!wrong.empty()) {
            say({"error: ", wrong});
            return kStatusFailed;
        }
        return context == nullptr ? real(scheduler, graph) : context->compute(scheduler, graph, real);
    } catch (const std::bad_alloc &) {
        say({"error: no memory for the next computation, which was not done; free some"});
        return kStatusNoMemory;
    } catch (const std::exception &error) {
        say({"error: ", error.what()});
        return kStatusFailed;
    }
}

void Host::freed(void *scheduler) noexcept {
    {
        const std::scoped_lock lock(mutex_);
        watched_.erase(scheduler);
        const auto known = contexts_.find(scheduler);
        if (known == contexts_.end()) {
            return;
        }
        const bool told = known->second != nullptr && !known->second->options().metrics_json.empty();
        contexts_.erase(known);
        if (!told) {
            return;
        }
    }
    write_metrics(true);
}

ServedContext *Host::attach(const std::shared_ptr<ServedModel> &model) {
    auto made = std::make_unique<ServedContext>(model);
    ServedContext *context = made.get();
    const std::scoped_lock lock(mutex_);
    contexts_.emplace(context, std::move(made));
    return context;
}

void Host::leave(void *scheduler) noexcept {
    try {
        const std::scoped_lock lock(mutex_);
        contexts_.try_emplace(scheduler);
    } catch (const std::bad_alloc &) {
        say({"error: no memory; a context that the program has attached is not told apart"});
    }
}

bool Host::of_one_sequence() noexcept {
    try {
        const std::scoped_lock lock(mutex_);
        return std::any_of(models_.begin(), models_.end(),
                           [](const Entry &entry) { return entry.model->options().of_one_sequence(); }) ||
               Options::from_environment().of_one_sequence();
    } catch (const std::exception &) { // what is wrong with the settings is said when a model is loaded
        return false;
    }
}

void Host::forget_keys() noexcept {
    const std::scoped_lock lock(mutex_);
    for (const auto &[scheduler, context] : contexts_) {
        if (context != nullptr) {
            context->forget_keys();
        }
    }
}

void Host::watched(void *scheduler, bool watched) noexcept {
    try {
        const std::scoped_lock lock(mutex_);
        if (watched) {
            watched_.insert(scheduler);
        } else {
            watched_.erase(scheduler);
        }
    } catch (const std::bad_alloc &) {
        say({"error: no memory; an evaluation callback of this program is not told apart"});
    }
}

void Host::write_metrics_at_exit() {
    static const int registered = [] {
        static_cast<void>(operator_names()); // made before, it is there until after
        return std::atexit([] { instance().write_metrics(false); });
    }();
    static_cast<void>(registered);
}

// `path`: the file that they are to be written to; empty: none.
std::string Host::metrics_text(std::string &path) const {
    std::string text;
    const auto add = [&](ServedModel *model, Totals totals, const Options &options) {
        for (const auto &[scheduler, context] : contexts_) {
            if (context != nullptr && context->model() == model) {
                context->add_to(totals);
            }
        }
        path = path.empty() ? options.metrics_json : path;
        text += (text.empty() ? "\n" : ",\n") + metrics_json(model, std::move(totals));
    };
    for (const Entry &entry : models_) {
        add(entry.model.get(), entry.model->totals, entry.model->options());
    }
    if (ordinary_) {
        add(nullptr, ordinary_->totals, ordinary_->options());
    }
    return "{" + text + "\n}\n";
}

std::string Host::metrics() {
    const std::scoped_lock lock(mutex_);
    std::string path;
    return metrics_text(path);
}

void Host::write_metrics(bool wait) noexcept {
    try {
        std::unique_lock lock(mutex_, std::defer_lock);
        if (wait) {
            lock.lock();
        } else if (!lock.try_lock()) {
            return;
        }
        std::string path;
        const std::string text = metrics_text(path);
        if (!path.empty()) {
            write_file(path, text);
        }
    } catch (const std::exception &error) {
        say({"error: the metrics are not written: ", error.what()});
    }
}

} // namespace seeddelta
