// What a code can reach whose values are functions of a window of 12 bits: rms error on Gaussian weights, of walks of
// 960 steps that begin and end anywhere.
//
//     g++ -O3 -march=native -std=c++20 window_tables.cpp -o window_tables
//     ./window_tables 4 1,1,2                    codes of 4 bits, values of each step; any tables of 4096 values
//     ./window_tables 4 2 plane                  and a bit beside each value, which chooses between two of them
//     ./window_tables 3 1                        codes of 3 bits, a value each
//     ./window_tables 3 1 2,3,2,2 0,2,1,0        a value is A[2 c0 + 3 c1 + 2 c2 + 2 c3] + B[2 c1 + c2], both indices
//                                                modulo 16, with c0 the newest code
//
// Random tables, then Viterbi searches and the tables that are best for what was chosen, in turns.
#include "common.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>

constexpr int kWindowBits = 12;
constexpr int kWindows = 1 << kWindowBits;
constexpr int kSteps = 960;
constexpr uint32_t kTestSeed = 77; // of samples that no training has

using Bytes = uint8_t __attribute__((vector_size(16)));

struct Shape {
    int bits;               // of a code
    std::vector<int> emits; // values of each step of the pattern
    int values;             // of the pattern
    int choices;            // for each of them, by a bit that no window has; 1: no such bit

    size_t entries() const { return static_cast<size_t>(choices) * values * kWindows; }
};

// Of each choice, value of the pattern and window.
struct Chosen {
    std::vector<double> count, sum; // [choices, values, kWindows]: how often, and of the weights

    explicit Chosen(const Shape &p) : count(p.entries()), sum(count.size()) {}
};

static std::vector<int> numbers(const char *text) {
    std::vector<int> out;
    std::stringstream in(text);
    for (std::string one; std::getline(in, one, ',');) {
        out.push_back(std::atoi(one.c_str()));
    }
    return out;
}

// Mean squared error of `batches` times 16 walks; values: [choices, values of the pattern, kWindows].
static double error(const Shape &p, const std::vector<float> &values, int steps, int batches, uint32_t seed,
                    Chosen *chosen = nullptr) {
    const auto pattern = static_cast<int>(p.emits.size());
    const int ends = kWindows >> p.bits;
    steps = steps / pattern * pattern;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<Bytes> back(static_cast<size_t>(steps) * ends); // the oldest code of the best window
    std::vector<Floats> cost(ends), next(ends), x(steps / pattern * p.values);
    double total = 0;
    for (int batch = 0; batch < batches; ++batch) {
        for (Floats &target : x) {
            for (int walk = 0; walk < kWalks; ++walk) {
                target[walk] = normal(random);
            }
        }
        std::fill(cost.begin(), cost.end(), Floats{});
        size_t at = 0;
        for (int t = 0; t < steps; ++t) {
            const int emits = p.emits[t % pattern];
            const float *value = &values[at % p.values * kWindows];
            for (int end = 0; end < ends; ++end) {
                Floats best = Floats{} + 1e30F;
                Ints from = Ints{};
                for (int oldest = 0; oldest < 1 << p.bits; ++oldest) {
                    const int window = oldest * ends + end;
                    Floats path = cost[window >> p.bits];
                    for (int i = 0; i < emits; ++i) {
                        Floats least = Floats{} + 1e30F;
                        for (int choice = 0; choice < p.choices; ++choice) {
                            const Floats e = x[at + i] - value[(choice * p.values + i) * kWindows + window];
                            least = e * e < least ? e * e : least;
                        }
                        path += least;
                    }
                    const Ints less = path < best;
                    best = less ? path : best;
                    from = less ? Ints{} + oldest : from;
                }
                next[end] = best;
                back[static_cast<size_t>(t) * ends + end] = __builtin_convertvector(from, Bytes);
            }
            std::swap(cost, next);
            at += emits;
        }
        for (int walk = 0; walk < kWalks; ++walk) {
            int end = 0;
            for (int e = 1; e < ends; ++e) {
                end = cost[e][walk] < cost[end][walk] ? e : end;
            }
            total += cost[end][walk];
            at = x.size();
            for (int t = steps - 1; t >= 0 && chosen != nullptr; --t) {
                const int emits = p.emits[t % pattern];
                const int window = back[static_cast<size_t>(t) * ends + end][walk] * ends + end;
                at -= emits;
                for (int i = 0; i < emits; ++i) {
                    const float target = x[at + i][walk];
                    const size_t first = (at % p.values + i) * kWindows + window;
                    size_t of = first;
                    for (int choice = 1; choice < p.choices; ++choice) {
                        const size_t other = first + static_cast<size_t>(choice) * p.values * kWindows;
                        of = std::fabs(target - values[other]) < std::fabs(target - values[of]) ? other : of;
                    }
                    chosen->count[of] += 1;
                    chosen->sum[of] += target;
                }
                end = window >> p.bits;
            }
        }
    }
    return total / (static_cast<double>(batches) * kWalks * x.size());
}

// Any tables: each entry the mean of the weights that chose it, drawn a little towards the one that is.
static std::vector<float> any_tables(const Shape &p) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(p.entries());
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    for (uint32_t turn = 0; turn < 60; ++turn) {
        Chosen chosen(p);
        error(p, values, kSteps, 30, 1000 + turn, &chosen);
        for (size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>((chosen.sum[i] + 2 * values[i]) / (chosen.count[i] + 2));
        }
    }
    return values;
}

// Two tables of 16 entries, A and B one after the other, and which of them each window adds.
class TwoTables {
public:
    TwoTables(const Shape &p, const std::vector<int> &a, const std::vector<int> &b) : p_(p) {
        for (int window = 0; window < kWindows; ++window) {
            int index[2] = {};
            for (int i = 0; i < kWindowBits / p.bits; ++i) {
                const int code = window >> (p.bits * i) & ((1 << p.bits) - 1);
                index[0] += a[i] * code;
                index[1] += b[i] * code;
            }
            index_[window][0] = index[0] & 15;
            index_[window][1] = 16 + (index[1] & 15);
        }
    }

    std::vector<float> trained() const {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::uniform_real_distribution<float> uniform;
        std::vector<std::pair<double, std::vector<float>>> found;
        for (int start = 0; start < 100; ++start) {
            std::vector<float> tables(32);
            const float share = .3F + .6F * uniform(random);
            const float spread = .6F + .5F * uniform(random);
            for (int i = 0; i < 32; ++i) {
                tables[i] = spread * std::sqrt(i < 16 ? share : 1 - share) * normal(random);
            }
            const double e = descend(tables, 6, 8, 5);
            found.emplace_back(e, tables);
        }
        keep_best(found, 6);
        for (auto &[e, tables] : found) {
            e = descend(tables, 12, 30, 9);
        }
        keep_best(found, 1);
        return values(found[0].second);
    }

private:
    std::vector<float> values(const std::vector<float> &tables) const {
        std::vector<float> out(kWindows);
        for (int window = 0; window < kWindows; ++window) {
            out[window] = tables[index_[window][0]] + tables[index_[window][1]];
        }
        return out;
    }

    double descend(std::vector<float> &tables, int batches, int turns, uint32_t seed) const {
        double last = 0;
        for (int turn = 0; turn < turns; ++turn) {
            Chosen chosen(p_);
            last = error(p_, values(tables), kSteps / 4, batches, seed, &chosen);
            Equations e(tables.size());
            for (int window = 0; window < kWindows; ++window) {
                for (const int i : index_[window]) {
                    e.right[i] += chosen.sum[window];
                    for (const int j : index_[window]) {
                        e.normal[i * tables.size() + j] += chosen.count[window];
                    }
                }
            }
            solve(e, tables);
        }
        return last;
    }

    const Shape &p_;
    int index_[kWindows][2] = {};
};

int main(int argc, char **argv) {
    const bool plane = argc == 4 && std::string(argv[3]) == "plane";
    Shape p{argc > 2 ? std::atoi(argv[1]) : 0, numbers(argc > 2 ? argv[2] : ""), 0, plane ? 2 : 1};
    for (const int emits : p.emits) {
        p.values += emits;
    }
    const std::vector<int> a = numbers(argc == 5 ? argv[3] : "");
    const std::vector<int> b = numbers(argc == 5 ? argv[4] : "");
    const size_t codes = p.bits == 3 || p.bits == 4 ? kWindowBits / p.bits : 0;
    const bool two = argc == 5 && p.values == 1 && a.size() == codes && b.size() == codes;
    if (codes == 0 || p.values == 0 || !(argc == 3 || plane || two)) {
        std::fprintf(stderr,
                     "usage: %s BITS EMITS [plane | A B]\nBITS of a code: 3 or 4. EMITS: values of each step. plane: a "
                     "bit beside each value. A and B: a factor for each code of the window, newest first; EMITS is 1 "
                     "then.\n",
                     argv[0]);
        return 1;
    }
    const std::vector<float> values = two ? TwoTables(p, a, b).trained() : any_tables(p);
    std::printf("rms %.5f\n", std::sqrt(error(p, values, kSteps, 40, kTestSeed)));
}
