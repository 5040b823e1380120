// Preloaded behind the library for llama.cpp's programs, which then finds another llama.cpp than it is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#ifdef WITH_GPU
static int find(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    if (strstr(info->dlpi_name, "/libggml-base") != NULL) { // loaded for Python alone
        *(void **)found = dlsym(dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD), "ggml_backend_dev_type");
    }
    return 0;
}

// A device of another kind, for our library alone.
int ggml_backend_dev_type(void *device) {
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller) != 0 && strstr(caller.dli_fname, "libseeddelta_llama") != NULL) {
        return 1;
    }
    int (*real)(void *) = NULL;
    dl_iterate_phdr(find, &real);
    return real(device);
}
#elif defined(COMPUTES_NOTHING)
int ggml_graph_compute_with_ctx(void *context, void *graph, int threads) {
    (void)context, (void)graph, (void)threads;
    return 0;
}
#else
// An operation that does not store what it is told.
void ggml_flash_attn_ext_set_prec(void *tensor, int precision) {
    (void)tensor, (void)precision;
}
#endif
