// A weight from the arrays of a file. Shapes, types and contents are checked here, once; kernels do not look again.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "seeddelta/columns.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

// An array of a file, the last dimension contiguous. Borrowed.
struct Array {
    const void *data = nullptr;
    char kind = 0;         // NumPy's: 'f', 'i', 'u'; 0: there is no such array
    int64_t item_size = 0; // in bytes
    std::vector<int64_t> shape;
    bool contiguous = true;

    template <class T>
    // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved, by a designator
    static Array of(const T *data, std::vector<int64_t> shape) {
        const char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
        return {.data = data, .kind = kind, .item_size = sizeof(T), .shape = std::move(shape)};
    }
    // Bits of float16.
    static Array of_half(const uint16_t *data, std::vector<int64_t> shape) {
        return {.data = data, .kind = 'f', .item_size = 2, .shape = std::move(shape)};
    }

    explicit operator bool() const { return kind != 0; }
    template <class T>
    const T *as() const {
        return static_cast<const T *>(data);
    }
    std::string shape_text() const;
};

// Throws std::invalid_argument unless the array is contiguous and aligned to its items, and has the item size, one of
// the kinds ("f", "iu") and the shape; -1 accepts any length.
void require_array(const Array &a, const char *name, const char *kinds, int64_t item_size,
                   std::initializer_list<int64_t> shape);

// What a file says of a matrix; docs/reference/format.md has the names. Arrays of `n_experts` matrices hold the rows
// (tiles, columns) of one after those of another.
struct WeightArrays {
    int64_t n_out = 0;
    int64_t n_in = 0;
    int64_t n_experts = 1;
    bool by_column = false; // layout column: codes are [n_in, streams, lines] and row_scale [n_in]
    uint32_t base_kind = static_cast<uint32_t>(BaseKind::none);
    uint64_t base_seed = 0;
    float base_scale = 0.0F;
    int rotation_block = 0;
    int base_block = 64;                          // prng_block
    int lane_code = -1;                           // lanes
    int fine_code = -1;                           // lanes: the code of the tiles of fine_map; -1: of none
    Array codes = {};                             // lanes: 8 bits [tiles, lines, 64]; of the tiles of lane_code
    Array fine_codes = {}, fine_map = {};         // the same of fine_code; 8 bits [tiles / 8 rounded up], a bit a tile
    Array row_scale = {};                         // float16 or float32 [n_out]
    Array column_scale = {};                      // int8 [n_in]
    Array d_idx = {}, d_val = {}, d_scale = {};   // coo
    Array b_map = {}, b_val = {}, b_scale = {};   // block
    Array r_dict = {}, r_codes = {}, r_vals = {}; // codebook_resid
    Array p_map = {}, p_val = {}, p_scale = {};   // proc_sparse
    Array seed_idx = {}, seed_gain = {};          // prng_block
};

// The array that files call by this suffix; null when there is none of it.
using ArrayMember = Array WeightArrays::*;
ArrayMember array_named(std::string_view suffix);

// A weight that has passed the checks, and what it needs beside the file's arrays. Does not move: its pointers lead
// into it.
class CheckedWeight {
public:
    // Throws std::invalid_argument, which names the tensor or the array.
    CheckedWeight(const std::string &name, const WeightArrays &arrays);
    CheckedWeight(const CheckedWeight &) = delete;
    CheckedWeight &operator=(const CheckedWeight &) = delete;

    bool is_column() const { return by_column_; }
    const seeddelta_ctx &ctx() const { return ctx_; }        // in column layout its shape and scales only
    const ColumnWeight &columns() const { return columns_; } // in column layout

private:
    bool by_column_;
    seeddelta_ctx ctx_;
    std::vector<TileRun> runs_;        // behind ctx.runs
    std::vector<float> column_factor_; // behind ctx.column_factor
    ColumnWeight columns_;
    std::vector<float> input_scale_; // behind columns.input_scale
};

// A dense matrix as float16 columns: a ColumnWeight and the memory behind it.
class DenseColumns {
public:
    // Puts rows [begin, end) of the matrix to `out`, float32 [end - begin, n_in].
    using ReadRows = std::function<void(int64_t begin, int64_t end, float *out)>;

    DenseColumns() = default;
    // Rounds to nearest even. Every row is read once, a few at a time, in ascending order. With `signs` a ternary
    // weight is put in place of each, too: its sign where its magnitude is above 0.7 times the mean of its row (Li et
    // al. 2016, Ternary Weight Networks). A row's sums are of float64, in order. Throws std::invalid_argument naming
    // the tensor, also for weights that float16 does not hold; std::bad_alloc; and what `rows` throws.
    DenseColumns(const std::string &name, int64_t n_out, int64_t n_in, const ReadRows &rows, bool signs = false);
    const ColumnWeight &weight() const { return weight_; }

private:
    struct Free {
        void operator()(uint16_t *data) const;
    };
    void add_signs(int64_t row, const float *values);

    ColumnWeight weight_;
    std::unique_ptr<uint16_t, Free> f16_;
    std::vector<uint64_t> sign_bits_;
    std::vector<float> sign_gamma_;
};

} // namespace seeddelta
