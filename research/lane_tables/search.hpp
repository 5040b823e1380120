// Viterbi search of a code of byte lanes in floating point, for walks that start and end anywhere, and the equations of
// least squares of what it chose.
#pragma once
#include "common.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

struct Pattern {
    std::vector<int> emits;
    std::vector<int> table; // of each value
    int tables = 0;
    int planes = 0;
    int with_bits = 99; // values of the pattern from its first that have bits of the planes
    int steps = 126;    // of a walk; whole patterns are searched
    int values() const { return static_cast<int>(table.size()); }
    int parameters() const { return 32 * tables + planes; }
};

// [tables, A and B, 16], then what each plane adds.
using Code = std::vector<float>;

static Pattern pattern_of(const char *text, bool shared, int planes) {
    Pattern p;
    p.planes = planes;
    std::stringstream in(text);
    for (std::string one; std::getline(in, one, ',');) {
        p.emits.push_back(std::atoi(one.c_str()));
    }
    const int singles = std::count(p.emits.begin(), p.emits.end(), 1) > 0 ? 1 : 0;
    for (const int emits : p.emits) {
        for (int i = 0; i < emits; ++i) {
            p.table.push_back(!shared ? p.values() : emits == 1 ? 0 : singles + i);
        }
    }
    p.tables = *std::max_element(p.table.begin(), p.table.end()) + 1;
    return p;
}

struct Samples {
    int batches;
    std::vector<float> x; // [batches, values of a walk, kWalks]
};

static Samples gaussian(const Pattern &p, int batches, uint32_t seed) {
    const int patterns = p.steps / static_cast<int>(p.emits.size());
    Samples s{batches, std::vector<float>(static_cast<size_t>(batches) * patterns * p.values() * kWalks)};
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    std::generate(s.x.begin(), s.x.end(), [&] { return normal(bits); });
    return s;
}

class Search {
public:
    // Squared error of one batch; adds to the equations of least squares if there are some.
    double batch(const Pattern &p, const Code &c, const float *x, Equations *equations) {
        steps_ = p.steps / static_cast<int>(p.emits.size()) * static_cast<int>(p.emits.size());
        back_.resize(static_cast<size_t>(steps_) * 256 * kWalks);
        for (int o = 0; o < 1 << p.planes; ++o) {
            added_[o] = 0;
            for (int i = 0; i < p.planes; ++i) {
                added_[o] += (o >> i & 1) != 0 ? c[32 * p.tables + i] : 0;
            }
        }
        std::fill(cost_, cost_ + 256, Floats{});
        int value = 0;
        const float *at = x;
        for (int t = 0; t < steps_; ++t) {
            const int emits = p.emits[t % p.emits.size()];
            value = t % p.emits.size() == 0 ? 0 : value;
            for (int i = 0; i < emits; ++i) {
                distances(p, c, value + i, at + i * kWalks, i % 2 == 0 ? first_ : second_, i > 1);
            }
            if (emits > 1) {
                select<true>(t);
            } else {
                select<false>(t);
            }
            value += emits;
            at += emits * kWalks;
        }
        double total = 0;
        for (int walk = 0; walk < kWalks; ++walk) {
            int end = 0;
            for (int e = 1; e < 256; ++e) {
                end = cost_[e][walk] < cost_[end][walk] ? e : end;
            }
            total += cost_[end][walk];
            if (equations != nullptr) {
                trace(p, c, x, walk, end, *equations);
            }
        }
        return total;
    }

private:
    // dist[b][a]: of the value A[a] + B[b], with the best bits of the planes; `more`: beside what is there.
    void distances(const Pattern &p, const Code &c, int value, const float *x, Floats (*dist)[16], bool more) const {
        const float *a = &c[32 * p.table[value]];
        Floats target;
        std::memcpy(&target, x, sizeof(target));
        for (int j = 0; j < 16; ++j) {
            for (int i = 0; i < 16; ++i) {
                const Floats e = target - (a[i] + a[16 + j]);
                Floats best = e * e;
                for (int o = 1; value < p.with_bits && o < 1 << p.planes; ++o) {
                    const Floats f = (e - added_[o]) * (e - added_[o]);
                    best = f < best ? f : best;
                }
                dist[j][i] = more ? dist[j][i] + best : best;
            }
        }
    }

    template <bool Seconds>
    void select(int t) {
        for (int c1 = 0; c1 < 16; ++c1) {
            for (int c0 = 0; c0 < 16; ++c0) {
                Floats best = Floats{} + 1e30F;
                Ints from = Ints{};
                for (int c2 = 0; c2 < 16; ++c2) {
                    Floats path = cost_[c2 * 16 + c1] + first_[c1][(c0 + c2) & 15];
                    if (Seconds) {
                        path += second_[c0][(c0 + c1 + c2) & 15];
                    }
                    const Ints less = path < best;
                    best = less ? path : best;
                    from = less ? Ints{} + c2 : from;
                }
                next_[c1 * 16 + c0] = best;
                for (int walk = 0; walk < kWalks; ++walk) {
                    back_[(static_cast<size_t>(t) * 256 + c1 * 16 + c0) * kWalks + walk] =
                        static_cast<uint8_t>(from[walk]);
                }
            }
        }
        std::memcpy(cost_, next_, sizeof(cost_));
    }

    void trace(const Pattern &p, const Code &c, const float *x, int walk, int end, Equations &equations) const {
        const int emitted = static_cast<int>(p.emits.size());
        int column = steps_ / emitted * p.values();
        for (int t = steps_ - 1; t >= 0; --t) {
            const int c0 = end & 15;
            const int c1 = end >> 4;
            const int c2 = back_[(static_cast<size_t>(t) * 256 + end) * kWalks + walk];
            const int emits = p.emits[t % emitted];
            column -= emits;
            for (int i = 0; i < emits; ++i) {
                const int a = i % 2 == 0 ? (c0 + c2) & 15 : (c0 + c1 + c2) & 15;
                const int table = 32 * p.table[(column + i) % p.values()];
                add(p, c, x[(column + i) * kWalks + walk], table + a, table + 16 + (i % 2 == 0 ? c1 : c0),
                    (column + i) % p.values() < p.with_bits, equations);
            }
            end = c2 << 4 | c1;
        }
    }

    void add(const Pattern &p, const Code &c, float target, int a, int b, bool with_bits, Equations &equations) const {
        int of[4] = {a, b};
        int count = 2;
        int best = 0;
        const float e = target - c[a] - c[b];
        for (int o = 1; with_bits && o < 1 << p.planes; ++o) {
            best = std::fabs(e - added_[o]) < std::fabs(e - added_[best]) ? o : best;
        }
        for (int i = 0; i < p.planes; ++i) {
            if ((best >> i & 1) != 0) {
                of[count++] = 32 * p.tables + i;
            }
        }
        const int n = p.parameters();
        for (int i = 0; i < count; ++i) {
            equations.right[of[i]] += target;
            for (int j = 0; j < count; ++j) {
                equations.normal[of[i] * n + of[j]] += 1;
            }
        }
    }

    int steps_ = 0;
    float added_[4] = {};
    Floats cost_[256], next_[256], first_[16][16], second_[16][16];
    std::vector<uint8_t> back_;
};

static Search search;

static double error(const Pattern &p, const Code &c, const Samples &s, Equations *equations = nullptr) {
    const size_t one = s.x.size() / s.batches;
    double sum = 0;
    for (int b = 0; b < s.batches; ++b) {
        sum += search.batch(p, c, &s.x[b * one], equations);
    }
    return sum / static_cast<double>(s.x.size());
}
