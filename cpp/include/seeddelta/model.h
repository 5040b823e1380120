/* SeedDelta models in a program that uses llama.cpp, by libseeddelta_llama.so, which is in the Python package. Linux.
 *
 * Linked before libllama (or in LD_PRELOAD) everything is automatic: llama_model_load_from_file takes SeedDelta files,
 * and contexts compute with them. Where it is loaded later, or llama.cpp is loaded for one library alone (dlopen), the
 * program opens a model, has llama.cpp load its stub file, and gives each context a callback; see cpp/example/model.c.
 *
 * Functions that can fail return NULL or not 0, and seeddelta_last_error() says why. Texts are UTF-8. Any thread may
 * call any function; a context is used by one at a time. */
#ifndef SEEDDELTA_MODEL_H
#define SEEDDELTA_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;
typedef struct seeddelta_model seeddelta_model;
typedef struct seeddelta_context seeddelta_context;

struct seeddelta_info {
    uint64_t tensors;       /* computed from the SeedDelta file; 0: it is an ordinary model by columns */
    uint64_t dense;         /* converted ones that are the fallback's from the start */
    uint64_t file_bytes;    /* of all parts */
    uint64_t weights;       /* in `tensors` */
    double bits_per_weight; /* of these, as they are stored */
};

/* What failed last in this thread; empty: nothing did. Valid until the next failure. */
const char *seeddelta_last_error(void);

/* Whether this process calls the library in place of llama.cpp's functions, so that nothing has to be attached. */
bool seeddelta_automatic(void);

/* Opens and checks a SeedDelta file, or with columns=f16 an ordinary model. `settings` are words NAME=VALUE as in
 * SEEDDELTA_SET; NULL: the environment's. NULL also for any other file, which llama.cpp loads itself. */
seeddelta_model *seeddelta_open(const char *path, const char *settings);
void seeddelta_info_of(const seeddelta_model *model, struct seeddelta_info *info);
/* After its contexts and llama.cpp's model. */
void seeddelta_free(seeddelta_model *model);

/* The file for llama_model_load_from_file, with mmap, and with an empty list of devices where llama.cpp has others than
 * the CPU. Valid until seeddelta_loaded, which is called when it is loaded, before anything is computed. */
const char *seeddelta_stub_path(seeddelta_model *model);
int seeddelta_loaded(seeddelta_model *model);

/* One for each llama_context: cb_eval is seeddelta_eval and cb_eval_user_data what is returned. Skipping of inputs is
 * on: it is not on trial. Freed after the llama_context. */
seeddelta_context *seeddelta_attach(seeddelta_model *model);
bool seeddelta_eval(struct ggml_tensor *tensor, bool ask, void *context);
/* After each llama_decode and llama_encode: not 0 where its results do not count. */
int seeddelta_check(seeddelta_context *context);
void seeddelta_detach(seeddelta_context *context);

/* Counters of all models so far, by path, as JSON; see SEEDDELTA_METRICS_JSON. To be freed with free(). */
char *seeddelta_metrics(void);

#ifdef __cplusplus
}
#endif
#endif
