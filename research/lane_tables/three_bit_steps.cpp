// What 3 bits could reach if a step had a code of 3 bits, where today's has a nibble for four values of three steps
// (pattern 1,1,2): rms error on Gaussians, walks that begin and end anywhere.
//
//     g++ -O3 -march=native -std=c++20 three_bit_steps.cpp -o three_bit_steps
//     ./three_bit_steps 2,3,2,2 0,2,1,0 --starts 200 --seed 1
//
// A value is A[sum of a_i c_i modulo 16] + B[sum of b_i c_i modulo 16], with c_0 the newest of four codes and the
// factors a_i, b_i from the command line. Random tables, then Viterbi searches and least squares in turns.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using Floats = float __attribute__((vector_size(64)));
using Ints = int __attribute__((vector_size(64)));
using Bytes = uint8_t __attribute__((vector_size(16)));
using Tables = std::vector<float>; // A, then B: 16 entries each

constexpr int kWalks = 16;     // searched together
constexpr int kEnds = 512;     // three codes
constexpr int kWindows = 4096; // four codes
constexpr int kEntries = 32;   // of both tables

struct Equations {
    std::vector<double> normal = std::vector<double>(kEntries * kEntries);
    std::vector<double> right = std::vector<double>(kEntries);
};

static uint8_t index_of_a[kWindows], index_of_b[kWindows];

static void set_indices(const char *text, uint8_t *index) {
    int factor[4] = {};
    if (std::sscanf(text, "%d,%d,%d,%d", factor, factor + 1, factor + 2, factor + 3) != 4) {
        std::fprintf(stderr, "four factors with commas between them, please: %s\n", text);
        std::exit(1);
    }
    for (int window = 0; window < kWindows; ++window) {
        int sum = 0;
        for (int i = 0; i < 4; ++i) {
            sum += factor[i] * (window >> (3 * i) & 7);
        }
        index[window] = sum & 15;
    }
}

// Mean squared error of `batches` times 16 walks; adds to the equations of what was chosen if there are some.
static double error(const Tables &table, int steps, int batches, uint32_t seed, Equations *equations = nullptr) {
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    std::vector<Bytes> back(static_cast<size_t>(steps) * kEnds); // the oldest code of the best window
    std::vector<Floats> cost(kEnds), next(kEnds), x(steps), distance(256);
    double total = 0;
    for (int batch = 0; batch < batches; ++batch) {
        for (Floats &target : x) {
            for (int walk = 0; walk < kWalks; ++walk) {
                target[walk] = normal(bits);
            }
        }
        std::fill(cost.begin(), cost.end(), Floats{});
        for (int t = 0; t < steps; ++t) {
            for (int i = 0; i < 256; ++i) {
                const Floats e = x[t] - (table[i & 15] + table[16 + (i >> 4)]);
                distance[i] = e * e;
            }
            for (int end = 0; end < kEnds; ++end) {
                Floats best = Floats{} + 1e30F;
                Ints from = Ints{};
                for (int oldest = 0; oldest < 8; ++oldest) {
                    const int window = oldest * kEnds + end;
                    const Floats path = cost[window >> 3] + distance[index_of_a[window] | index_of_b[window] << 4];
                    const Ints less = path < best;
                    best = less ? path : best;
                    from = less ? Ints{} + oldest : from;
                }
                next[end] = best;
                back[static_cast<size_t>(t) * kEnds + end] = __builtin_convertvector(from, Bytes);
            }
            std::swap(cost, next);
        }
        for (int walk = 0; walk < kWalks; ++walk) {
            int end = 0;
            for (int e = 1; e < kEnds; ++e) {
                end = cost[e][walk] < cost[end][walk] ? e : end;
            }
            total += cost[end][walk];
            for (int t = steps - 1; t >= 0 && equations != nullptr; --t) {
                const int window = back[static_cast<size_t>(t) * kEnds + end][walk] * kEnds + end;
                const int of[2] = {index_of_a[window], 16 + index_of_b[window]};
                for (const int i : of) {
                    equations->right[i] += x[t][walk];
                    for (const int j : of) {
                        equations->normal[i * kEntries + j] += 1;
                    }
                }
                end = window >> 3;
            }
        }
    }
    return total / (static_cast<double>(batches) * kWalks * steps);
}

// Least squares, drawn a little towards the entries that are: one number can go from A to B unseen.
static void solve(Equations &e, Tables &table) {
    double mean = 0;
    for (int i = 0; i < kEntries; ++i) {
        mean += e.normal[i * kEntries + i] / kEntries;
    }
    for (int i = 0; i < kEntries; ++i) {
        e.normal[i * kEntries + i] += 1e-3 * mean;
        e.right[i] += 1e-3 * mean * table[i];
    }
    for (int i = 0; i < kEntries; ++i) {
        for (int j = i + 1; j < kEntries; ++j) {
            const double f = e.normal[j * kEntries + i] / e.normal[i * kEntries + i];
            for (int k = i; k < kEntries; ++k) {
                e.normal[j * kEntries + k] -= f * e.normal[i * kEntries + k];
            }
            e.right[j] -= f * e.right[i];
        }
    }
    for (int i = kEntries - 1; i >= 0; --i) {
        for (int k = i + 1; k < kEntries; ++k) {
            e.right[i] -= e.normal[i * kEntries + k] * e.right[k];
        }
        e.right[i] /= e.normal[i * kEntries + i];
        table[i] = static_cast<float>(e.right[i]);
    }
}

static double descend(Tables &table, int batches, int turns, uint32_t seed) {
    double last = 0;
    for (int i = 0; i < turns; ++i) {
        Equations e;
        last = error(table, 240, batches, seed, &e);
        solve(e, table);
    }
    return last;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s A,A,A,A B,B,B,B [--starts N] [--seed N]\n", argv[0]);
        return 1;
    }
    set_indices(argv[1], index_of_a);
    set_indices(argv[2], index_of_b);
    int starts = 40;
    uint32_t seed = 1;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (std::string(argv[i]) == "--starts") {
            starts = std::atoi(argv[i + 1]);
        } else {
            seed = std::atoi(argv[i + 1]);
        }
    }
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    std::vector<std::pair<double, Tables>> found;
    for (int i = 0; i < starts; ++i) {
        Tables table(kEntries);
        const float share = .3F + .6F * uniform(bits);
        const float spread = .6F + .5F * uniform(bits);
        for (int k = 0; k < kEntries; ++k) {
            table[k] = spread * std::sqrt(k < 16 ? share : 1 - share) * normal(bits);
        }
        const double e = descend(table, 6, 8, 5);
        found.emplace_back(e, table);
    }
    auto best_first = [&] {
        std::sort(found.begin(), found.end(), [](auto &a, auto &b) { return a.first < b.first; });
    };
    best_first();
    found.resize(std::min<size_t>(found.size(), 6));
    for (auto &[e, table] : found) {
        e = descend(table, 12, 30, 9);
    }
    best_first();
    std::printf("rms %.5f\n", std::sqrt(error(found[0].second, 960, 40, 77)));
    for (int k = 0; k < kEntries; ++k) {
        std::printf("%.4f%s", found[0].second[k], k % 16 == 15 ? "\n" : " ");
    }
}
