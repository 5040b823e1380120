// A native cb_eval that collects statistics of the inputs of chosen matrices while llama.cpp computes: E[x^2] as
// llama-imatrix does, and of token-normalized inputs x / |x| * sqrt(n_in) the squares and the whole covariance.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ggml_host/ggml_abi.hpp"

namespace seeddelta {

// Sums over the tokens seen so far of one input. The matrices of a mixture of experts have sums of their own, one after
// another, over the tokens that chose them, and share the covariance; n_experts is 1 for every other matrix.
struct InputSums {
    int64_t n_in = 0;
    int64_t tokens = 0;
    int64_t nonfinite_tokens = 0;    // left out
    std::vector<int64_t> counts;     // [n_experts] inputs in the sums
    std::vector<double> square;      // [n_experts, n_in] x^2
    std::vector<double> norm_square; // [n_experts, n_in] of the normalized inputs
    // of the normalized inputs of all experts together, empty when not wanted: the upper triangle in blocks of
    // kRowBlock rows, one after the other, each with the columns from its first row on
    std::vector<float> covariance;

    static constexpr int64_t kRowBlock = 64;

    // Where a block of rows begins; that of the block after the last is the size of all.
    int64_t offset_of(int64_t block) const {
        const int64_t before = std::min(block * kRowBlock, n_in);
        const int64_t whole = before / kRowBlock * kRowBlock;
        // whole blocks have n_in, n_in - 64, ... columns; a last one that is not whole has n_in - whole
        return n_in * whole - whole * (whole - kRowBlock) / 2 + (before - whole) * (n_in - whole);
    }
    // Columns of a block, which are its stride.
    int64_t columns_of(int64_t block) const { return n_in - block * kRowBlock; }
    // Of any two columns, in any order.
    float &covariance_at(int64_t i, int64_t j) {
        const int64_t row = std::min(i, j);
        const int64_t block = row / kRowBlock;
        const int64_t begin = block * kRowBlock;
        return covariance[static_cast<size_t>(offset_of(block) + (row - begin) * columns_of(block) + std::max(i, j) -
                                              begin)];
    }
};

// Values of a node in the last evaluation.
struct TakenValues {
    int64_t columns = 0;
    std::vector<float> values; // [rows, columns]
};

class CaptureHook {
public:
    // names: matrices whose inputs are wanted. taken: nodes of the graph whose values are copied, and
    // matrices whose inputs are; with any, the graph is always computed to its end.
    CaptureHook(const GgmlAbi &abi, const std::vector<std::string> &names, bool covariance, int threads,
                const std::vector<std::string> &taken);

    // ggml_backend_sched_eval_callback; user_data is the hook.
    static bool callback(void *tensor, bool ask, void *user_data) noexcept;

    std::map<std::string, InputSums> &sums() { return sums_; }
    // Matrix -> the matrix (maybe itself) under whose name the sums of the same input stand.
    const std::map<std::string, std::string> &representatives() const { return representatives_; }
    std::map<std::string, TakenValues> &taken() { return taken_; }
    // The representatives in the order of the graph.
    const std::vector<std::string> &order() const { return order_; }
    // One of the taken: once its values are copied, the rest of the graph is left out.
    void stop_after(const std::string &name) { stop_after_ = name; }
    // Empty, or why the statistics cannot be trusted.
    const std::string &error() const { return error_; }

private:
    bool wanted(const void *node);
    // Whether the node's values are to be copied, or it multiplies by a matrix whose inputs are.
    bool is_taken(const void *node) const;
    bool copy(const std::string &name, const void *values);
    // False when the rest of the graph is not needed.
    bool take(const void *node);
    std::string name_of(const void *tensor) const;
    // False: nothing that comes after in the graph is wanted, so that llama.cpp can leave it out.
    bool collect(const void *node);
    // True when the node multiplies by a matrix under whose name sums stand.
    bool is_summed(const void *node) const;
    // Finds the inputs of a node, in rows_ and experts_. False: they are not as expected.
    bool gather(const void *node, int64_t n_experts);
    void add_normalized(InputSums &s);
    // Of every so many rows.
    void add_covariance(InputSums &s, int64_t every);

    const GgmlAbi &abi_;
    std::unordered_map<std::string, bool> targets_;
    bool covariance_;
    int threads_;
    std::map<std::string, InputSums> sums_;
    std::map<std::string, TakenValues> taken_;
    std::vector<std::string> order_;
    std::string stop_after_;
    std::map<std::string, std::string> representatives_;
    const void *last_input_ = nullptr;
    std::string last_name_;
    std::string final_name_; // the last of the graph whose input is collected, once all matrices were met
    std::string error_;
    std::vector<const float *> rows_; // the tokens that count
    std::vector<int64_t> experts_;    // which expert each of them goes to
    std::vector<float> scales_;       // what normalizes each of them
    std::vector<float> normalized_;   // [tokens, n_in + padding], from the first whole cache line on
    float *normalized() {
        constexpr uintptr_t line = 64;
        const auto at = reinterpret_cast<uintptr_t>(normalized_.data());
        return normalized_.data() + (line - at % line) % line / sizeof(float);
    }
};

} // namespace seeddelta
