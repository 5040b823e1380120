// All models of ours in this process, and the contexts that compute with them, which are found by their graphs: a
// context is one of a model where its graph reads from a file that the model gave to llama.cpp.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/ordinary_models.hpp"

namespace seeddelta {

class Host {
public:
    // Never freed: threads may compute while the process ends.
    static Host &instance();

    // The model of a file; null where llama.cpp loads it alone. With settings as SEEDDELTA_SET has them; null: those of
    // the environment. Throws ModelFileError, std::bad_alloc.
    std::shared_ptr<ServedModel> open(const char *path, const char *settings = nullptr);
    // The file for llama.cpp to load; and what is to be done with it once that is over. Throw ModelFileError.
    std::shared_ptr<StubFile> stub_of(ServedModel &model);
    void loaded(ServedModel &model, StubFile &stub);

    // In place of ggml_backend_sched_graph_compute_async. Never throws.
    int compute(void *scheduler, void *graph, ComputeGraph real) noexcept;
    void freed(void *scheduler) noexcept;
    // Somebody else computes with our weights in the graphs of a scheduler.
    void leave(void *scheduler) noexcept;
    // A context whose graphs are shown to its eval. It goes when it is freed.
    ServedContext *attach(const std::shared_ptr<ServedModel> &model);
    // Whether somebody else's callback looks at the nodes of a scheduler's graphs.
    void watched(void *scheduler, bool watched) noexcept;
    // Whether what a model here does, or an ordinary one, follows the tokens of one sequence.
    bool of_one_sequence() noexcept;
    // Somebody wrote to a KV cache, which is not known to be one of ours, without a graph.
    void forget_keys() noexcept;
    // Of all models, as JSON. Throws std::bad_alloc.
    std::string metrics();
    // To the file that SEEDDELTA_METRICS_JSON names. A process may end in a handler of signals, where nothing can be
    // waited for.
    void write_metrics(bool wait) noexcept;
    static void write_metrics_at_exit();

private:
    struct FileState {
        dev_t device = 0;
        ino_t inode = 0;
        int64_t size = 0, seconds = 0, nanoseconds = 0;
        bool operator==(const FileState &) const = default;
    };
    struct Entry {
        FileState state;
        std::optional<std::string> settings;
        std::shared_ptr<ServedModel> model;
    };
    struct Found {
        std::shared_ptr<ServedModel> model;
        std::string misplaced; // a weight of a model of ours whose placeholder was read, not mapped
        bool ordinary = false; // it computes with weights of others
    };

    static bool state_of(const char *path, FileState &state);
    void prune(const FileState &wanted);
    std::string metrics_text(std::string &path) const;
    OrdinaryModels &ordinary_models();
    ServedContext *context_of(void *scheduler, void *graph, std::string &wrong);
    Found find_model(void *graph) const;
    void look_at(const void *tensor, bool as_weight, const std::vector<Mapping> &mappings, Found &found) const;

    std::mutex mutex_; // of all that follows
    std::vector<Entry> models_;
    std::optional<OrdinaryModels> ordinary_; // once one of them computes
    // By scheduler, or of one that was attached. Null: llama.cpp computes alone.
    std::unordered_map<void *, std::unique_ptr<ServedContext>> contexts_;
    std::unordered_set<void *> watched_;
};

} // namespace seeddelta
