#include "runtime/ordinary_context.hpp"

#include "gguf/error.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

static constexpr const char *kKept = "ordinary models: attention is llama.cpp's: ";
static constexpr const char *kWatched = "the program looks at the graph's nodes one by one (an evaluation callback)";

OrdinaryContext::OrdinaryContext(const LlamaLibrary &library, AttentionMode mode, AttentionCounts &totals)
    : library_(library), attention_(library, mode), totals_(totals) {}

OrdinaryContext::~OrdinaryContext() {
    add_to(totals_);
}

int OrdinaryContext::compute(void *scheduler, void *graph, ComputeGraph real) {
    const int nodes = library_.graph_size(graph);
    for (int i = 0; i < nodes; ++i) {
        attention_.hook().visit(library_.graph_node(graph, i));
    }
    const int status = real(scheduler, graph);
    if (const std::string wrong = attention_.wrong(); !wrong.empty()) {
        say({"error: ", wrong});
        return kStatusFailed;
    }
    return status;
}

OrdinaryModels::OrdinaryModels() {
    try {
        options_ = Options::from_environment();
    } catch (const ModelFileError &error) {
        say({"error: ", error.what(), " (llama.cpp computes ordinary models alone)"});
        options_.attention = AttentionMode::llama;
    }
    if (options_.attention == AttentionMode::llama) {
        return;
    }
    try {
        const std::string device = LlamaLibrary::other_device();
        if (!device.empty()) {
            throw ModelFileError("the device " + device + " of this llama.cpp may compute parts of a graph");
        }
        library_ = &LlamaLibrary::loaded();
        static_cast<void>(library_->attention());
    } catch (const ModelFileError &error) {
        library_ = nullptr;
        why_not_ = error.what();
        if (options_.verbose) {
            say({kKept, why_not_});
        }
    }
}

std::unique_ptr<OrdinaryContext> OrdinaryModels::make(bool watched) {
    if (library_ == nullptr) {
        return nullptr;
    }
    if (watched && options_.verbose) {
        say({kKept, kWatched});
    }
    return std::make_unique<OrdinaryContext>(*library_, options_.attention, totals);
}

std::string OrdinaryModels::refusal(bool watched) const {
    if (options_.attention != AttentionMode::exact || (!watched && why_not_.empty())) {
        return {};
    }
    return "attention=exact: " + (watched ? kWatched : why_not_) + "; leave attention out";
}

} // namespace seeddelta
