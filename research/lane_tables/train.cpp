// Trains the tables of a code of byte lanes (docs/reference/format.md, "The byte lanes") for Gaussian weights.
//
//     g++ -O3 -march=native -std=c++20 train.cpp -o train
//     ./train 1,1,2 --starts 200 --seed 1        values of each step of the pattern
//     ./train 1 --planes 1 --starts 200          and one bit of a plane beside each value
//     ./train 1,1 --shared --planes 1 --with-bits 1  and beside the first value of the pattern only
//     ./train 1,1,1,1,1,1,2 --shared             one table for all single values, one for first ones …
//     ./train 1 --check "UNIT A… B…" --polish 80  error of given numbers, and what changes of single entries make of it
//                                                 (--polish 0: only the error; --steps 960: of walks of 960 steps)
//
// Random tables, then Viterbi searches and least squares in turns: a value is linear in the entries of its tables. The
// best are trained on more samples, scaled to whole numbers, and single entries changed as long as that helps.
#include "search.hpp"

#include <cstdio>
#include <iterator>
#include <numeric>

constexpr float kLargest = 63; // of a value, the format's limit

static double descend(const Pattern &p, Code &c, const Samples &s, int turns) {
    double last = 0;
    for (int i = 0; i < turns; ++i) {
        Equations e(c.size());
        last = error(p, c, s, &e);
        solve(e, c);
    }
    return last;
}

static Code random_code(const Pattern &p, std::mt19937 &bits) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    Code c(p.parameters());
    const float spread = .5F + .5F * uniform(bits);
    const float share = .3F + .6F * uniform(bits);
    float added = 0;
    for (int i = 0; i < p.planes; ++i) {
        added += c[32 * p.tables + i] = .1F * std::pow(20.F, uniform(bits));
    }
    for (int i = 0; i < 32 * p.tables; ++i) {
        const bool a = i % 32 < 16;
        c[i] = spread * std::sqrt(a ? share : 1 - share) * normal(bits) - (a ? added / 2 : 0);
    }
    return c;
}

// The largest value, in units of the code.
static float largest(const Pattern &p, const Code &c) {
    float out = 0;
    for (int t = 0; t < p.tables; ++t) {
        const float *a = &c[32 * t];
        float high = *std::max_element(a, a + 16) + *std::max_element(a + 16, a + 32);
        float low = *std::min_element(a, a + 16) + *std::min_element(a + 16, a + 32);
        for (int i = 0; i < p.planes; ++i) {
            (c[32 * p.tables + i] > 0 ? high : low) += c[32 * p.tables + i];
        }
        out = std::max({out, high, -low});
    }
    return out;
}

static Code divided(Code c, float unit) {
    for (float &v : c) {
        v /= unit;
    }
    return c;
}

static Code rounded(const Pattern &p, Code c, float unit) {
    for (int t = 0; t < p.tables; ++t) { // B has the mean 0
        float *a = &c[32 * t];
        const float mean = std::accumulate(a + 16, a + 32, 0.F) / 16;
        for (int i = 0; i < 16; ++i) {
            a[i] += mean;
            a[16 + i] -= mean;
        }
    }
    for (float &v : c) {
        v = std::rint(v * unit);
    }
    while (largest(p, c) > kLargest) { // the entries farthest from 0, one at a time
        float before = largest(p, c);
        int best = 0;
        for (int i = 0; i < 32 * p.tables; ++i) {
            best = std::fabs(c[i]) > std::fabs(c[best]) ? i : best;
        }
        for (int i = 0; i < 32 * p.tables && largest(p, c) >= before; ++i) {
            const float kept = c[i];
            c[i] -= c[i] > 0 ? 1 : -1;
            if (largest(p, c) >= before && i + 1 < 32 * p.tables) {
                c[i] = kept;
            }
        }
        if (largest(p, c) >= before) {
            c[best] -= c[best] > 0 ? 1 : -1;
        }
    }
    return c;
}

static void print(const Pattern &p, const Code &c, double rms, float unit) {
    std::printf("rms %.5f unit %.4f largest %g", rms, unit, largest(p, c));
    for (int i = 0; i < p.planes; ++i) {
        std::printf(" plane %g", c[32 * p.tables + i]);
    }
    std::printf("\n");
    for (int i = 0; i < 2 * p.tables; ++i) {
        std::printf("%s{", i % 2 == 0 ? "{" : " ");
        for (int k = 0; k < 16; ++k) {
            std::printf("%g%s", c[16 * i + k], k < 15 ? ", " : "}");
        }
        std::printf("%s\n", i % 2 == 0 ? "," : "},");
    }
}

// Changes of single entries, as long as one helps.
static void improve(const Pattern &p, Code best, float unit, int batches) {
    const Samples some = gaussian(p, batches, 5);
    double least = error(p, divided(best, unit), some);
    std::printf("whole numbers: rms %.5f unit %.3f\n", std::sqrt(least), unit);
    for (bool changed = true; changed;) {
        changed = false;
        auto take = [&](const Code &c, float u) {
            const double e = largest(p, c) <= kLargest ? error(p, divided(c, u), some) : 1e30;
            if (e < least * (1 - 1e-5)) {
                least = e;
                unit = u;
                best = c;
                changed = true;
            }
        };
        for (int i = 0; i < p.parameters(); ++i) {
            for (const float step : {1.F, -1.F}) {
                Code c = best;
                c[i] += step;
                take(c, unit);
            }
        }
        for (const float f : {.985F, .995F, 1.005F, 1.015F}) {
            take(best, unit * f);
        }
    }
    print(p, best, std::sqrt(error(p, divided(best, unit), gaussian(p, 200, 77))), unit);
}

// Whole numbers at the best unit, improved.
static void to_integers(const Pattern &p, const Code &trained, int batches) {
    const Samples some = gaussian(p, batches, 5);
    double least = 1e30;
    float unit = 0;
    for (float u = kLargest / 4.4F; u < kLargest / 2.8F; u *= 1.01F) {
        const double e = error(p, divided(rounded(p, trained, u), u), some);
        if (e < least) {
            least = e;
            unit = u;
        }
    }
    improve(p, rounded(p, trained, unit), unit, batches);
}

int main(int argc, char **argv) {
    int starts = 100;
    int planes = 0;
    int polish = 40;
    int seed = 1;
    int steps = Pattern().steps;
    int with_bits = Pattern().with_bits;
    bool shared = false;
    const char *check = nullptr;
    const std::pair<const char *, int *> numbers[] = {{"--starts", &starts}, {"--planes", &planes},
                                                      {"--polish", &polish}, {"--seed", &seed},
                                                      {"--steps", &steps},   {"--with-bits", &with_bits}};
    for (int i = 2; i < argc; ++i) {
        const std::string option = argv[i];
        const auto *number =
            std::find_if(std::begin(numbers), std::end(numbers), [&](auto &n) { return option == n.first; });
        if (option == "--shared") {
            shared = true;
        } else if (option == "--check" && i + 1 < argc) {
            check = argv[++i];
        } else if (number != std::end(numbers) && i + 1 < argc) {
            *number->second = std::atoi(argv[++i]);
        } else {
            std::fprintf(stderr, "unknown option, or one without its value: %s\n", argv[i]);
            return 1;
        }
    }
    Pattern p = pattern_of(argc > 1 ? argv[1] : "1", shared, planes);
    p.steps = steps;
    p.with_bits = with_bits;
    if (check != nullptr) {
        std::stringstream in(check);
        float unit = 1;
        in >> unit;
        Code c(p.parameters());
        for (float &v : c) {
            in >> v;
        }
        print(p, c, std::sqrt(error(p, divided(c, unit), gaussian(p, 200, 77))), unit);
        if (polish > 0) {
            improve(p, c, unit, polish);
        }
        return 0;
    }
    std::mt19937 bits(seed);
    const Samples few = gaussian(p, 24, seed * 7 + 1);
    std::vector<std::pair<double, Code>> found;
    for (int i = 0; i < starts; ++i) {
        Code c = random_code(p, bits);
        const double e = descend(p, c, few, 10);
        found.emplace_back(e, c);
    }
    keep_best(found, 8);
    for (auto &[e, c] : found) {
        e = descend(p, c, few, 50);
    }
    keep_best(found, 2);
    const Samples more = gaussian(p, 120, 99);
    for (auto &[e, c] : found) {
        e = descend(p, c, more, 10);
    }
    keep_best(found, 1);
    std::printf("trained: rms %.5f\n", std::sqrt(found[0].first));
    to_integers(p, found[0].second, polish);
}
