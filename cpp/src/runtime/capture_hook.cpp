#include "runtime/capture_hook.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "util/parallel.hpp"

namespace seeddelta {

static constexpr int64_t kRowBlock = 64;   // rows of the covariance a job
static constexpr int64_t kTokenBlock = 64; // tokens at a time: their stretch of columns stays in the first cache
static constexpr int64_t kPadding = 16;    // floats: rows of the activations must not fall on the same cache sets

CaptureHook::CaptureHook(const GgmlAbi &abi, const std::vector<std::string> &names, bool covariance, int64_t skip,
                         int threads)
    : abi_(abi), covariance_(covariance), skip_(skip), threads_(threads) {
    for (const std::string &name : names) {
        targets_[name] = true;
    }
}

bool CaptureHook::callback(void *tensor, bool ask, void *user_data) noexcept {
    auto *hook = static_cast<CaptureHook *>(user_data);
    try {
        if (ask) {
            return hook->wanted(tensor);
        }
        hook->collect(tensor);
    } catch (const std::exception &e) {
        hook->error_ = e.what();
        return !ask; // an exception must not cross C; the caller looks at error()
    }
    return true;
}

bool CaptureHook::wanted(const void *node) {
    if (abi_.op_of(node) != abi_.op_mul_mat) {
        return false;
    }
    const void *weight = abi_.src_of(node, 0);
    const std::string name(abi_.name_of(weight), strnlen(abi_.name_of(weight), kMaxName));
    if (targets_.find(name) == targets_.end()) {
        return false;
    }
    const void *input = abi_.src_of(node, 1);
    const auto known = representatives_.find(name);
    if (known == representatives_.end()) {
        // Matrices that read the same input follow one another in the graph.
        representatives_[name] = input == last_input_ ? last_name_ : name;
    }
    if (representatives_[name] != name) {
        return false;
    }
    last_input_ = input;
    last_name_ = name;
    return true;
}

void CaptureHook::collect(const void *node) {
    const void *weight = abi_.src_of(node, 0);
    const void *input = abi_.src_of(node, 1);
    const std::string name(abi_.name_of(weight), strnlen(abi_.name_of(weight), kMaxName));
    const int64_t n_in = abi_.ne_of(input, 0);
    const int64_t n_tokens = abi_.ne_of(input, 1) * abi_.ne_of(input, 2) * abi_.ne_of(input, 3);
    const auto *data = static_cast<const uint8_t *>(abi_.data_of(input));
    if (abi_.type_of(input) != kTypeF32 || abi_.nb_of(input, 0) != 4 || data == nullptr ||
        abi_.ne_of(input, 2) * abi_.ne_of(input, 3) != 1) {
        error_ = "the input of '" + name + "' is not a float32 matrix in host memory";
        return;
    }
    InputSums &s = sums_[name];
    if (s.n_in == 0) {
        s.n_in = n_in;
        s.square.assign(static_cast<size_t>(n_in), 0.0);
        s.norm_square.assign(static_cast<size_t>(n_in), 0.0);
        if (covariance_) {
            s.covariance.assign(static_cast<size_t>(n_in * n_in), 0.0F);
        }
    }
    const int64_t stride = n_in + kPadding;
    normalised_.resize(static_cast<size_t>(n_tokens * stride));
    int64_t kept = 0;
    for (int64_t t = std::min(skip_, n_tokens); t < n_tokens; ++t) {
        const auto *x = reinterpret_cast<const float *>(data + t * abi_.nb_of(input, 1));
        double energy = 0;
        for (int64_t i = 0; i < n_in; ++i) {
            energy += static_cast<double>(x[i]) * x[i];
        }
        if (!std::isfinite(energy)) {
            ++s.nonfinite_tokens;
            continue;
        }
        const float scale = energy > 0 ? static_cast<float>(std::sqrt(static_cast<double>(n_in) / energy)) : 0.0F;
        float *row = normalised_.data() + kept * stride;
        for (int64_t i = 0; i < n_in; ++i) {
            row[i] = x[i] * scale;
            s.square[static_cast<size_t>(i)] += static_cast<double>(x[i]) * x[i];
            s.norm_square[static_cast<size_t>(i)] += static_cast<double>(row[i]) * row[i];
        }
        ++kept;
    }
    s.tokens += kept;
    if (covariance_ && kept > 0) {
        add_covariance(s, kept);
    }
}

void CaptureHook::add_covariance(InputSums &s, int64_t tokens) {
    const int64_t n = s.n_in;
    const int64_t stride = n + kPadding;
    negated_.resize(static_cast<size_t>(n * tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < n; ++i) {
            negated_[static_cast<size_t>(i * tokens + t)] = -normalised_[static_cast<size_t>(t * stride + i)];
        }
    }
    parallel_for((n + kRowBlock - 1) / kRowBlock, threads_, [&](int64_t block, int) {
        const int64_t begin = block * kRowBlock;
        const int64_t rows = std::min(kRowBlock, n - begin);
        for (int64_t t = 0; t < tokens; t += kTokenBlock) {
            kernels().subtract_product(s.covariance.data() + begin * n + begin, n, negated_.data() + begin * tokens + t,
                                       tokens, normalised_.data() + t * stride + begin, stride, rows,
                                       std::min(kTokenBlock, tokens - t), n - begin);
        }
    });
}

} // namespace seeddelta
