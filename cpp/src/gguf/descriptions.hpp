// The table of converted tensors of a SeedΔ file: typed arrays seeddelta.tensors.* with an entry a tensor
// (docs/reference/format.md).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/header.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

enum class SeedPer : uint8_t { tensor = 0, row = 1, block = 2 };

struct TensorDescription {
    std::string name;
    int64_t n_out = 0; // of each matrix
    int64_t n_in = 0;
    int64_t experts = 0; // 0: one matrix that is no expert
    double scale = 0.0;
    int64_t base_block = 0; // prng_block
    int64_t rotation_block = 0;
    int64_t resid_k = 0;     // entries, blocks or atoms a row
    int64_t resid_block = 0; // columns of a block
    int64_t resid_size = 0;  // atoms of the codebook
    uint64_t trims = 0;
    double error = 0.0; // what a gap is compared with
    BaseKind base = BaseKind::none;
    ResidualScheme residual = ResidualScheme::none;
    int code = 0;      // lanes
    int fine_code = 0; // of fine_tiles of the tiles
    int64_t fine_tiles = 0;
    SeedPer seed_per = SeedPer::tensor;
    bool by_column = false;
    bool column_scale = false;
    bool int8_values = false;
    bool half_row_scale = false;
    bool is_unsafe = false;

    int64_t matrices() const { return experts == 0 ? 1 : experts; }
    // Whether a codebook is the whole weight.
    bool is_statecells() const { return base == BaseKind::none && residual == ResidualScheme::codebook_resid; }
    // Prefix of the names of its payload.
    std::string stem() const;
};

// Whether the file is a SeedΔ file, of any version. Throws ModelFileError.
bool is_seeddelta(const Header &header);

// In file order. Throws ModelFileError also for a version, a kind, a scheme or a code that is not known.
std::vector<TensorDescription> read_descriptions(const Header &header);

} // namespace seeddelta
