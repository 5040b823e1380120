// The instructions that the kernels of byte lanes are written in: a struct of one register width, which words_*.hpp
// define and isa_*.cpp extend. Include inside an instruction-set unit only.
#pragma once
#include <concepts>
#include <cstdint>

namespace seeddelta {
namespace {

// What words may have beyond the concept below. A struct that has one says so: a signature with a typing error is
// then an error of the compiler, and not a silent choice of the slower way.
struct OptionalWords {
    static constexpr bool kHasDotAt = false;     // dot_at(sum, values, x): dot with the inputs in memory
    static constexpr bool kHasDotBoth = false;   // dot_both(sum, v0, v1, x0, x1): two dots, added in 16 bits
    static constexpr bool kHasDotBothAt = false; // dot_both_at: the same with the inputs in memory
    static constexpr bool kHasPairDots = false;  // dots_of_pair(sum0, sum1, v0, v1, x): for two tokens of a TokenBatch
    static constexpr bool kHasBlockDots = false; // dots_of_block(sums, v0, v1, x): for all eight tokens of a TokenBatch
    static constexpr bool kHasWideTable = false; // wide_table, with_bit: an index of a code and a bit of a plane
};

template <class Words>
concept LaneWords = requires(typename Words::V v, typename Words::V &sum, typename Words::F f, const uint8_t *codes,
                             const int8_t *x, uint8_t *bytes, float *floats, int n) {
    { Words::kParts } -> std::convertible_to<int>;      // registers a code line
    { Words::kDirect } -> std::convertible_to<int64_t>; // most tokens of LaneTile; more are for lanes_many.hpp
    { Words::kBias } -> std::convertible_to<int>;       // added to every value, for products of unsigned bytes
    { Words::kTakes } -> std::same_as<const bool &>;    // add_bit adds where the bit of the plane is clear
    { Words::direct_parts(n) } -> std::same_as<int>;    // parts that are decoded together for n tokens
    { Words::tiles(n) } -> std::same_as<int>; // tiles decoded together for n tokens, where a code line is one register
    { Words::packed(n) } -> std::same_as<bool>; // whether the inputs of n tokens are those of a TokenBatch
    { Words::load(codes) } -> std::same_as<typename Words::V>; // a register of a code line
    { Words::low(v) } -> std::same_as<typename Words::V>;      // codes of the even steps, as indices of look
    { Words::high(v) } -> std::same_as<typename Words::V>;     // codes of the odd steps
    { Words::table(x) } -> std::same_as<typename Words::V>;    // a table of 16 bytes, for look
    { Words::look(v, v) } -> std::same_as<typename Words::V>;  // bytes of a table at indices
    { Words::wrap(v) } -> std::same_as<typename Words::V>;     // sums of codes as indices
    { Words::add(v, v) } -> std::same_as<typename Words::V>;   // bytes
    { Words::template add_bit<0>(v, v, v) } -> std::same_as<typename Words::V>; // adds where a plane's bit is set
    { Words::start(int32_t{}) } -> std::same_as<typename Words::V>; // sums of products that make up for kBias
    { Words::four(x) } -> std::same_as<typename Words::V>;          // the inputs of a dot group in every 32-bit lane
    { Words::dot(sum, v, v) } -> std::same_as<typename Words::V>;   // adds the products of a dot group
    Words::keep(sum);                                               // sum stays in a register
    Words::store(bytes, v);
    { Words::no_floats() } -> std::same_as<typename Words::F>; // zeros
    { Words::load_floats(floats) } -> std::same_as<typename Words::F>;
    { Words::add_group(f, v, 1.0F) } -> std::same_as<typename Words::F>; // adds a group's sums times its scale
    Words::store_rows(floats, f);
} && requires(typename Words::V v, typename Words::V &sum, typename Words::V *sums, const int8_t *x) {
    requires !Words::kHasDotAt || requires { Words::dot_at(sum, v, x); };
    requires !Words::kHasDotBoth || requires { Words::dot_both(sum, v, v, v, v); };
    requires !Words::kHasDotBothAt || requires { Words::dot_both_at(sum, v, v, x, x); };
    requires !Words::kHasPairDots || requires { Words::dots_of_pair(sum, sum, v, v, x); };
    requires !Words::kHasBlockDots || requires { Words::dots_of_block(sums, v, v, x); };
    requires !Words::kHasWideTable || requires {
        Words::wide_table(v, 0, int8_t{});
        Words::template with_bit<0>(v, v);
    };
};

} // namespace
} // namespace seeddelta
