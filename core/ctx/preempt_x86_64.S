/*
 * preempt_x86_64.S - the call that a signal handler injects (preempt.h).
 *
 * Entered with sp at the interrupted pc, 128 bytes (the red zone) below the
 * interrupted sp. All registers are the interrupted code's. Bits of AVX and
 * wider registers beyond SSE are not live where this may be injected: LuaJIT's
 * interpreter and its compiled code use none.
 *
 * Tests: spec/unit/preempt_test.c
 */
	.text
	.globl	tp_preempt_tramp
	.hidden	tp_preempt_tramp
	.type	tp_preempt_tramp, @function
	.p2align 5
tp_preempt_tramp:
	.cfi_startproc
	.cfi_def_cfa rsp, 8 + 128
	.cfi_offset rip, -(8 + 128)
	pushfq
	.cfi_adjust_cfa_offset 8
	pushq	%rax
	.cfi_adjust_cfa_offset 8
	pushq	%rcx
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	pushq	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbx, 0
	pushq	%rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbp, 0
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%r8
	.cfi_adjust_cfa_offset 8
	pushq	%r9
	.cfi_adjust_cfa_offset 8
	pushq	%r10
	.cfi_adjust_cfa_offset 8
	pushq	%r11
	.cfi_adjust_cfa_offset 8
	pushq	%r12
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r12, 0
	pushq	%r13
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r13, 0
	pushq	%r14
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r14, 0
	pushq	%r15
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r15, 0
	movq	%rsp, %rbp
	.cfi_def_cfa_register rbp
	subq	$512, %rsp
	andq	$-64, %rsp
	fxsave64 (%rsp)
	cld
	call	tp_preempt_yield
	fxrstor64 (%rsp)
	movq	%rbp, %rsp
	.cfi_def_cfa_register rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%r11
	popq	%r10
	popq	%r9
	popq	%r8
	popq	%rdi
	popq	%rsi
	popq	%rbp
	popq	%rbx
	popq	%rdx
	popq	%rcx
	popq	%rax
	popfq
	ret	$128
	.cfi_endproc
	.size	tp_preempt_tramp, . - tp_preempt_tramp

	.section .note.GNU-stack, "", @progbits
