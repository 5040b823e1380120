"""NumPy's linear algebra and its threads."""

from __future__ import annotations

from seeddelta.numeric import one_blas_thread


def test_linear_algebra_of_jobs_has_one_thread() -> None:
    """The rounding of BLAS depends on its threads, and the setting is of the process: the last one out restores it."""
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            with one_blas_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before
