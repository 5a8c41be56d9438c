"""Products beside the laboratory: each imports the core, and the core imports none of them.

They come in by the seams that anybody's plug-in uses: a line in the registry, an entry point. The
package works without any of them. `cpu` is the compiled engine, `training` trains drafters,
`sandbox` runs generated programs, `check` audits a running server, `lm_eval` is a model of
lm-evaluation-harness, `vllm` drafts inside vLLM.
"""
