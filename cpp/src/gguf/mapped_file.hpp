// A file mapped for reading.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace seeddelta {

class MappedFile {
public:
    // Throws ModelFileError.
    explicit MappedFile(const std::string &path);
    ~MappedFile();
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const std::string &path() const { return path_; }
    int fd() const { return fd_; }
    std::span<const uint8_t> data() const { return {data_, size_}; }
    // A part that was read counts as memory of this process no more, until it is read again.
    void give_back(size_t offset, size_t bytes) const;

private:
    std::string path_;
    int fd_ = -1;
    const uint8_t *data_ = nullptr;
    size_t size_ = 0;
};

} // namespace seeddelta
