/* Continues a text with a SeedDelta model: model FILE TEXT TOKENS. With the headers of llama.cpp; linked as
 *     cc model.c -I$INCLUDE -lseeddelta_llama -lllama -lggml -lggml-base        everything is automatic
 *     cc model.c -I$INCLUDE -lllama -lggml -lggml-base -lseeddelta_llama        the program attaches */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>
#include <seeddelta/model.h>

enum { most = 512 };

static int fail(void) {
    fprintf(stderr, "%s\n", seeddelta_last_error());
    return 1;
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* The most likely tokens, one after the other; not 0 where something fails. */
static int generate(struct llama_context *context, seeddelta_context *attached, const char *text, int count) {
    const struct llama_vocab *vocab = llama_model_get_vocab(llama_get_model(context));
    struct llama_sampler *greedy = llama_sampler_init_greedy();
    llama_token tokens[most], next;
    int n = llama_tokenize(vocab, text, (int)strlen(text), tokens, most, true, false), failed = n <= 0;
    struct llama_batch batch = llama_batch_get_one(tokens, n);
    while (!failed && count-- > 0) {
        failed = llama_decode(context, batch) != 0 || (attached != NULL && seeddelta_check(attached) != 0);
        if (failed)
            break;
        next = llama_sampler_sample(greedy, context, -1);
        if (llama_vocab_is_eog(vocab, next))
            break;
        char piece[128];
        fwrite(piece, 1, (size_t)llama_token_to_piece(vocab, next, piece, sizeof(piece), 0, false), stdout);
        batch = llama_batch_get_one(&next, 1);
    }
    llama_sampler_free(greedy);
    return failed ? fail() : 0;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    const bool automatic = seeddelta_automatic();
    llama_log_set(quiet, NULL);
    seeddelta_model *opened = seeddelta_open(argv[1], NULL);
    if (opened == NULL)
        return fail();
    struct seeddelta_info info;
    seeddelta_info_of(opened, &info);
    const char *path = automatic ? argv[1] : seeddelta_stub_path(opened);
    ggml_backend_dev_t none[] = {NULL};
    struct llama_model_params of_model = llama_model_default_params();
    of_model.devices = none;
    struct llama_model *model = path == NULL ? NULL : llama_model_load_from_file(path, of_model);
    if (model == NULL || (!automatic && seeddelta_loaded(opened) != 0))
        return fail();
    seeddelta_context *attached = automatic ? NULL : seeddelta_attach(opened);
    if (!automatic && attached == NULL)
        return fail();
    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = most;
    of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (!automatic) {
        of_context.cb_eval = seeddelta_eval;
        of_context.cb_eval_user_data = attached;
    }
    struct llama_context *context = llama_init_from_model(model, of_context);
    const int failed = context == NULL ? fail() : generate(context, attached, argv[2], atoi(argv[3]));
    char *metrics = seeddelta_metrics();
    fprintf(stderr, "%s, %llu tensors at %.2f bits per weight\n%s", automatic ? "automatic" : "attached",
            (unsigned long long)info.tensors, info.bits_per_weight, metrics == NULL ? "" : metrics);
    free(metrics);
    llama_free(context);
    if (attached != NULL)
        seeddelta_detach(attached);
    llama_model_free(model);
    seeddelta_free(opened);
    return failed;
}
