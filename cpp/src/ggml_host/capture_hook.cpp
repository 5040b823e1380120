#include "ggml_host/capture_hook.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/parallel.hpp"
#include "ggml_host/node_form.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

static constexpr int64_t kRowBlock = InputSums::kRowBlock; // rows of the covariance a job
static constexpr int64_t kTokenBlock = 64; // tokens and columns at a time: with the rows' own tokens they fit the first
static constexpr int64_t kColumnBlock = 64; // cache, 32 KiB or more
static constexpr int64_t kPadding = 16;     // floats: rows of the activations must not fall on the same cache sets

CaptureHook::CaptureHook(const GgmlAbi &abi, const std::vector<std::string> &names, bool covariance, int threads,
                         const std::vector<std::string> &taken)
    : abi_(abi), covariance_(covariance), threads_(threads) {
    for (const std::string &name : names) {
        targets_[name] = true;
    }
    for (const std::string &name : taken) {
        taken_[name] = {};
    }
}

std::string CaptureHook::name_of(const void *tensor) const {
    return {abi_.name_of(tensor), strnlen(abi_.name_of(tensor), kMaxName)};
}

bool CaptureHook::callback(void *tensor, bool ask, void *user_data) noexcept {
    auto *hook = static_cast<CaptureHook *>(user_data);
    try {
        if (ask) {
            const bool wanted = hook->wanted(tensor);
            return hook->is_taken(tensor) || wanted;
        }
        const bool goes_on = hook->take(tensor);
        const bool more = !hook->is_summed(tensor) || hook->collect(tensor) || !hook->taken_.empty();
        return goes_on && more;
    } catch (const std::exception &e) {
        hook->error_ = e.what();
        return false; // an exception must not cross C; the caller looks at error()
    }
}

bool CaptureHook::wanted(const void *node) {
    if (abi_.op_of(node) != abi_.op_mul_mat && abi_.op_of(node) != abi_.op_mul_mat_id) {
        return false;
    }
    const void *weight = abi_.src_of(node, 0);
    const std::string name = name_of(weight);
    if (targets_.find(name) == targets_.end()) {
        return false;
    }
    const void *input = abi_.src_of(node, 1);
    const auto known = representatives_.find(name);
    if (known == representatives_.end()) {
        // Matrices that read the same input follow one another in the graph.
        representatives_[name] = input == last_input_ ? last_name_ : name;
        if (representatives_[name] == name) {
            order_.push_back(name);
        }
        if (representatives_.size() == targets_.size()) {
            final_name_ = representatives_[name];
        }
    }
    if (representatives_[name] != name) {
        return false;
    }
    last_input_ = input;
    last_name_ = name;
    return true;
}

bool CaptureHook::is_summed(const void *node) const {
    if (abi_.op_of(node) != abi_.op_mul_mat && abi_.op_of(node) != abi_.op_mul_mat_id) {
        return false;
    }
    const std::string name = name_of(abi_.src_of(node, 0));
    const auto known = representatives_.find(name);
    return known != representatives_.end() && known->second == name;
}

bool CaptureHook::is_taken(const void *node) const {
    return !taken_.empty() && (taken_.count(name_of(node)) != 0 || (abi_.op_of(node) == abi_.op_mul_mat &&
                                                                    taken_.count(name_of(abi_.src_of(node, 0))) != 0));
}

bool CaptureHook::take(const void *node) {
    if (!is_taken(node)) {
        return true;
    }
    const std::string own = name_of(node);
    const bool is_node = taken_.count(own) != 0;
    const std::string name = is_node ? own : name_of(abi_.src_of(node, 0));
    if (!copy(name, is_node ? node : abi_.src_of(node, 1))) {
        error_ = "the values of '" + name + "' are not a float32 matrix in host memory";
    }
    return name != stop_after_;
}

bool CaptureHook::copy(const std::string &name, const void *values) {
    const auto *data = static_cast<const uint8_t *>(abi_.data_of(values));
    const int64_t rows = abi_.ne_of(values, 1);
    if (abi_.type_of(values) != kTypeF32 || abi_.nb_of(values, 0) != 4 || data == nullptr ||
        abi_.ne_of(values, 2) * abi_.ne_of(values, 3) != 1) {
        return false;
    }
    TakenValues &out = taken_[name];
    out.columns = abi_.ne_of(values, 0);
    out.values.resize(static_cast<size_t>(rows * out.columns));
    for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(out.values.data() + r * out.columns, data + static_cast<size_t>(r) * abi_.nb_of(values, 1),
                    static_cast<size_t>(out.columns) * sizeof(float));
    }
    return true;
}

// The inputs of a product, token by token: [n_in, tokens, heads], where every head has a matrix of its own, or for
// experts [n_in, inputs, tokens] with the numbers of the experts [used, tokens].
bool CaptureHook::gather(const void *node, int64_t n_experts) {
    const void *input = abi_.src_of(node, 1);
    const bool many = abi_.op_of(node) == abi_.op_mul_mat_id;
    const void *ids = many ? abi_.src_of(node, 2) : nullptr;
    rows_.clear();
    experts_.clear();
    if (abi_.type_of(input) != kTypeF32 || abi_.nb_of(input, 0) != 4 || abi_.data_of(input) == nullptr ||
        abi_.ne_of(input, 3) != 1 || (!many && abi_.ne_of(input, 2) != n_experts)) {
        return false;
    }
    if (many && (ids == nullptr || abi_.data_of(ids) == nullptr || abi_.type_of(ids) != kTypeI32 ||
                 abi_.ne_of(ids, 1) != abi_.ne_of(input, 2) || !uniform(abi_, input))) {
        return false;
    }
    const ExpertBatch batch = batch_of(abi_, node);
    for (int64_t i = 0; i < batch.pairs(); ++i) {
        const int64_t pair = many ? i : i % batch.n_tokens * batch.used + i / batch.n_tokens;
        const int64_t expert = batch.expert_of(pair);
        if (expert < 0 || expert >= n_experts) {
            return false;
        }
        rows_.push_back(batch.input_of(pair));
        experts_.push_back(expert);
    }
    return true;
}

bool CaptureHook::collect(const void *node) {
    const void *weight = abi_.src_of(node, 0);
    const std::string name = name_of(weight);
    const bool many = abi_.op_of(node) == abi_.op_mul_mat_id;
    const int64_t n_experts = abi_.ne_of(weight, 2); // 1 for one matrix, or as many as there are heads
    const int64_t n_in = abi_.ne_of(weight, 0);
    if (!gather(node, n_experts)) {
        error_ = "the input of '" + name + "' is not a float32 matrix in host memory";
        return false;
    }
    InputSums &s = sums_[name];
    if (s.n_in == 0) {
        s.n_in = n_in;
        s.counts.assign(static_cast<size_t>(n_experts), 0);
        s.square.assign(static_cast<size_t>(n_experts * n_in), 0.0);
        s.norm_square.assign(static_cast<size_t>(n_experts * n_in), 0.0);
        if (covariance_) {
            s.covariance.assign(static_cast<size_t>(s.offset_of((n_in + kRowBlock - 1) / kRowBlock)), 0.0F);
        }
    }
    std::vector<double> energy(rows_.size());
    parallel_for(static_cast<int64_t>(rows_.size()), threads_, [&](int64_t t, int) {
        const float *x = rows_[static_cast<size_t>(t)];
        double sum = 0;
        for (int64_t i = 0; i < n_in; ++i) {
            sum += static_cast<double>(x[i]) * x[i];
        }
        energy[static_cast<size_t>(t)] = sum;
    });
    scales_.clear();
    size_t kept = 0;
    for (size_t t = 0; t < rows_.size(); ++t) {
        if (!std::isfinite(energy[t])) {
            ++s.nonfinite_tokens;
            continue;
        }
        rows_[kept] = rows_[t];
        experts_[kept++] = experts_[t];
        ++s.counts[static_cast<size_t>(experts_[t])];
        scales_.push_back(energy[t] > 0 ? static_cast<float>(std::sqrt(static_cast<double>(n_in) / energy[t])) : 0.0F);
    }
    rows_.resize(kept);
    s.tokens += static_cast<int64_t>(kept) / (many ? abi_.ne_of(node, 1) : n_experts);
    add_normalized(s);
    if (!s.covariance.empty()) { // slots of a token that share an input count once
        const void *input = abi_.src_of(node, 1);
        add_covariance(s, many && abi_.ne_of(input, 1) == 1 ? abi_.ne_of(node, 1) : 1);
    }
    return name != final_name_;
}

void CaptureHook::add_normalized(InputSums &s) {
    const int64_t n = s.n_in;
    const int64_t stride = n + kPadding;
    normalized_.resize(rows_.size() * static_cast<size_t>(stride) + kPadding);
    // A job owns its columns: the sums do not depend on the number of threads.
    parallel_for((n + kColumnBlock - 1) / kColumnBlock, threads_, [&](int64_t block, int) {
        const int64_t end = std::min(n, (block + 1) * kColumnBlock);
        for (size_t t = 0; t < rows_.size(); ++t) {
            const float *x = rows_[t];
            const float scale = scales_[t];
            double *square = s.square.data() + experts_[t] * n;
            double *norm_square = s.norm_square.data() + experts_[t] * n;
            float *row = normalized() + t * static_cast<size_t>(stride);
            for (int64_t i = block * kColumnBlock; i < end; ++i) {
                row[i] = x[i] * scale;
                square[i] += static_cast<double>(x[i]) * x[i];
                norm_square[i] += static_cast<double>(row[i]) * row[i];
            }
        }
    });
}

void CaptureHook::add_covariance(InputSums &s, int64_t every) {
    const int64_t n = s.n_in;
    const int64_t stride = every * (n + kPadding);
    const auto tokens = static_cast<int64_t>(rows_.size()) / every;
    parallel_for((n + kRowBlock - 1) / kRowBlock, threads_, [&](int64_t block, int) {
        const int64_t begin = block * kRowBlock;
        const int64_t rows = std::min(kRowBlock, n - begin);
        float *sums = s.covariance.data() + s.offset_of(block); // [rows, n - begin]
        float negated[kRowBlock * kTokenBlock];                 // [rows, tokens]
        for (int64_t t = 0; t < tokens; t += kTokenBlock) {
            const int64_t inner = std::min(kTokenBlock, tokens - t);
            const float *x = normalized() + t * stride;
            for (int64_t i = 0; i < inner; ++i) {
                for (int64_t r = 0; r < rows; ++r) {
                    negated[r * kTokenBlock + i] = -x[i * stride + begin + r];
                }
            }
            for (int64_t j = begin; j < n; j += kColumnBlock) {
                kernels().encode.subtract_product(sums + (j - begin), n - begin, negated, kTokenBlock, x + j, stride,
                                                  rows, inner, std::min(kColumnBlock, n - j));
            }
        }
    });
}

} // namespace seeddelta
