// The file in memory that llama.cpp loads in place of a SeedΔ file: the metadata and the kept tensors, and for every
// converted tensor a placeholder of its shape. Placeholders come last, in one stretch.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "gguf/stub_header.hpp"
#include "runtime/mappings.hpp"

namespace seeddelta {

class StubFile {
public:
    // With the metadata of `model`; placeholders are put last. Throws ModelFileError, also for a tensor that llama.cpp
    // does not survive.
    StubFile(const Header &model, std::vector<StubTensor> tensors, const ChangedValues &changed = {});
    ~StubFile() { close(); }
    StubFile(const StubFile &) = delete;
    StubFile &operator=(const StubFile &) = delete;

    const std::string &path() const { return path_; }
    // Whether a mapping is of this file, or of what its placeholders were made.
    bool owns(const Mapping &mapping) const;
    // Makes the placeholders NaN wherever the file is mapped now, and gives back their pages, which loading touched. A
    // few pages of NaN are mapped again and again, so that they take no memory. Throws ModelFileError.
    void seal(const std::vector<Mapping> &mappings);
    // Whether it was mapped when it was sealed. Such a file has lost its marks and is not to be loaded again.
    bool sealed() const { return sealed_; }
    // Addresses and bytes of what is no placeholder, where the file is mapped.
    std::vector<std::pair<uintptr_t, size_t>> kept(const std::vector<Mapping> &mappings) const;
    // What is mapped stays; it cannot be loaded any more.
    void close() noexcept;

    // Whether this is the data of a placeholder that was read instead of mapped. `bytes` of it may be looked at.
    static bool is_placeholder(const void *data, size_t bytes);

private:
    struct File {
        int fd = -1;
        dev_t device = 0;
        ino_t inode = 0;
        bool owns(const Mapping &m) const { return m.inode == inode && m.device == device; }
    };
    static File make(const std::string &name);
    void write(const Header &model, std::vector<StubTensor> &tensors, const ChangedValues &changed);
    [[noreturn]] void fail() const;
    void write_all(const void *data, size_t count, size_t at) const;
    void copy(const TensorInfo &source, size_t at) const;
    void map_nan(uintptr_t begin, uintptr_t end) const;

    std::string origin_; // the SeedΔ file
    std::string path_;
    File stub_, nan_;
    size_t nan_bytes_ = 0;
    size_t begin_ = 0, end_ = 0; // of the placeholders
    bool sealed_ = false;
};

} // namespace seeddelta
