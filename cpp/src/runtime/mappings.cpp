#include "runtime/mappings.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "gguf/error.hpp"

namespace seeddelta {

static std::string read_maps() {
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        throw ModelFileError("/proc/self/maps cannot be read, and SeedΔ models need it; mount /proc");
    }
    std::string text;
    char part[1 << 14];
    for (ssize_t count = 0; (count = read(fd, part, sizeof(part))) > 0;) {
        text.append(part, static_cast<size_t>(count));
    }
    close(fd);
    return text;
}

std::vector<Mapping> read_mappings() {
    const std::string text = read_maps();
    std::vector<Mapping> all;
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
        unsigned long begin = 0, end = 0, offset = 0, inode = 0;
        unsigned major_number = 0, minor_number = 0;
        char access = '-';
        // NOLINTNEXTLINE(cert-err34-c): the kernel has written it
        if (std::sscanf(text.c_str() + at, "%lx-%lx %c%*s %lx %x:%x %lu", &begin, &end, &access, &offset, &major_number,
                        &minor_number, &inode) == 7) {
            all.push_back({begin, end, offset, access == 'r', makedev(major_number, minor_number), inode});
        }
        if (text.find('\n', at) == std::string::npos) {
            break;
        }
    }
    return all;
}

const Mapping *mapping_of(const std::vector<Mapping> &mappings, const void *address) {
    const auto place = reinterpret_cast<uintptr_t>(address);
    const auto after = std::upper_bound(mappings.begin(), mappings.end(), place,
                                        [](uintptr_t value, const Mapping &m) { return value < m.end; });
    return after == mappings.end() || place < after->begin ? nullptr : &*after;
}

} // namespace seeddelta
