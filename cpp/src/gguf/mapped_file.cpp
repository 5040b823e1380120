#include "gguf/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gguf/error.hpp"

namespace seeddelta {

static constexpr size_t kLeast = 24; // bytes of the shortest GGUF file

MappedFile::MappedFile(const std::string &path) : path_(path) {
    const auto fail = [&](const std::string &what, Fault fault = Fault::format) {
        if (fd_ >= 0) {
            close(fd_);
        }
        throw ModelFileError(path + ": " + what, fault);
    };
    const auto unreadable = [&] {
        const Fault fault = errno == ENOENT ? Fault::missing : Fault::format;
        fail(std::string("cannot be read (") + std::strerror(errno) + "); check the path and the permissions", fault);
    };
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe is refused below
    struct stat status = {};
    if (fd_ < 0 || fstat(fd_, &status) != 0) {
        unreadable();
    }
    if (!S_ISREG(status.st_mode)) {
        fail("is no regular file; give a .gguf model");
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ < kLeast) {
        fail("too short to be a GGUF file; it is truncated, make it again");
    }
    void *data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
    if (data == MAP_FAILED) {
        unreadable();
    }
    data_ = static_cast<const uint8_t *>(data);
}

void MappedFile::give_back(size_t offset, size_t bytes) const {
    static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t begin = offset / page * page;
    // where it fails they stay: only memory is lost
    static_cast<void>(madvise(const_cast<uint8_t *>(data_) + begin, offset + bytes - begin, MADV_DONTNEED));
}

MappedFile::~MappedFile() {
    munmap(const_cast<uint8_t *>(data_), size_);
    close(fd_);
}

} // namespace seeddelta
