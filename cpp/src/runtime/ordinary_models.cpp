#include "runtime/ordinary_models.hpp"

#include "gguf/error.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

static constexpr const char *kKept = "ordinary models: attention is llama.cpp's: ";
static constexpr const char *kWatched = "the program looks at the graph's nodes one by one (an evaluation callback)";

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
        static_cast<void>(LlamaLibrary::loaded().attention());
        ours_ = true;
    } catch (const ModelFileError &error) {
        why_not_ = error.what();
        if (options_.verbose) {
            say({kKept, why_not_});
        }
    }
}

std::unique_ptr<ServedContext> OrdinaryModels::make(bool watched) {
    if (!ours_) {
        return nullptr;
    }
    if (watched && options_.verbose) {
        say({kKept, kWatched});
    }
    return std::make_unique<ServedContext>(nullptr, options_, totals);
}

std::string OrdinaryModels::refusal(bool watched) const {
    const std::string asked = options_.asks_for_attention();
    if (asked.empty() || (!watched && why_not_.empty())) {
        return {};
    }
    return asked + ": " + (watched ? kWatched : why_not_) + "; leave it out";
}

} // namespace seeddelta
