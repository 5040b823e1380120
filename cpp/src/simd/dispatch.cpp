// Chooses the kernel table for this machine. SEEDDELTA_FORCE_ISA is read once, when the library is loaded.
#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "seeddelta/isa.hpp"
#include "simd/kernel_table.hpp"

#if defined(SEEDDELTA_HAVE_SSSE3)
#include <cpuid.h>
#endif
#if defined(SEEDDELTA_HAVE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(SEEDDELTA_HAVE_NEON)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace seeddelta {

#if defined(SEEDDELTA_HAVE_SSSE3)
enum Register { eax, ebx, ecx, edx };

// A leaf of CPUID; zeros where there is none.
static std::array<unsigned, 4> cpuid(unsigned leaf, unsigned subleaf) {
    std::array<unsigned, 4> r{};
    const bool there = __get_cpuid_count(leaf, subleaf, &r[eax], &r[ebx], &r[ecx], &r[edx]) != 0;
    return there ? r : std::array<unsigned, 4>{};
}

// Not among the names of __builtin_cpu_supports. AVX2 says that the registers are saved.
static bool has_avxvnni() {
    return (cpuid(7, 1)[eax] & (1U << 4)) != 0;
}

// Not every compiler has its name.
static bool has_f16c() {
    return (cpuid(1, 0)[ecx] & (1U << 29)) != 0;
}
#endif

#if defined(SEEDDELTA_HAVE_AMX)
// AMX with products of bytes, its registers among those that the system saves, and the system's leave for this process
// to use them.
static bool has_amx() {
    constexpr unsigned instructions = 3U << 24;
    if ((cpuid(7, 0)[edx] & instructions) != instructions) {
        return false;
    }
    constexpr unsigned registers = 3U << 17; // of XCR0: their layout and their data
    unsigned low = 0;
    unsigned high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr int request = 0x1023; // ARCH_REQ_XCOMP_PERM
    constexpr int data = 18;
    return (low & registers) == registers && syscall(SYS_arch_prctl, request, data) == 0;
}
#endif

static std::vector<const KernelTable *> supported() {
    std::vector<const KernelTable *> tables{&kernels_scalar()};
#if defined(SEEDDELTA_HAVE_SSSE3)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("ssse3")) {
        tables.push_back(&kernels_ssse3());
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        tables.push_back(&kernels_avx2());
        if (has_avxvnni()) {
            tables.push_back(&kernels_avxvnni());
        }
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) {
        tables.push_back(&kernels_avx512bw());
        if (__builtin_cpu_supports("avx512vnni")) {
            tables.push_back(&kernels_avx512vnni());
            if (__builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vbmi") &&
                __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq") &&
                __builtin_cpu_supports("avx512bitalg")) {
                tables.push_back(&kernels_avx512());
#if defined(SEEDDELTA_HAVE_AMX)
                if (has_amx()) {
                    tables.push_back(&kernels_amx());
                }
#endif
            }
        }
    }
#endif
#if defined(SEEDDELTA_HAVE_NEON)
    tables.push_back(&kernels_neon());
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
        tables.push_back(&kernels_neon_dotprod());
    }
#endif
    return tables;
}

static const std::vector<const KernelTable *> &tables() {
    static const std::vector<const KernelTable *> list = supported();
    return list;
}

static std::atomic<const KernelTable *> active{nullptr};

void isa_select(const std::string &name) {
    std::string known;
    for (const KernelTable *table : tables()) {
        if (name == table->name) {
            active.store(table);
            return;
        }
        known += std::string(known.empty() ? "" : ", ") + table->name;
    }
    throw std::invalid_argument("instruction set '" + name + "' is not available on this machine; available: " + known);
}

const KernelTable &kernels() {
    const KernelTable *table = active.load(std::memory_order_acquire);
    if (table == nullptr) {
        const char *forced = std::getenv("SEEDDELTA_FORCE_ISA");
        if (forced != nullptr && *forced != '\0') {
            isa_select(forced);
        } else {
            active.store(tables().back());
        }
        table = active.load();
    }
    return *table;
}

std::vector<std::string> isa_available() {
    std::vector<std::string> names;
    for (const KernelTable *table : tables()) {
        names.emplace_back(table->name);
    }
    return names;
}

std::string isa_active() {
    return kernels().name;
}

} // namespace seeddelta
