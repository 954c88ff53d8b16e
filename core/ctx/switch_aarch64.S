/*
 * switch_aarch64.S - leave one stack, go on with another (AAPCS64).
 *
 * Idea: a suspended context is one pointer, sp, to this frame at the low end
 * of its stack. Only what a callee must preserve is in it; the caller has
 * already given up the rest by making a call.
 *
 *     high    sp + 176   the caller's frame (first entry: 0, 0)
 *             sp + 168   unused
 *             sp + 160   fpcr
 *             sp +  96   d8 .. d15
 *             sp +  16   x19 .. x28         (first entry: x19 entry, x20 arg)
 *             sp +   8   x30, where to go   (first entry: tp_ctx_entry)
 *     low     sp +   0   x29                (first entry: 0)
 *
 * x29 and x30 are lowest, so that the frame is a link of the frame pointer
 * chain. fpcr is written only when it differs: the write serialises. x18 is
 * the platform's and is not touched. No BTI/PAC note: the pages stay unguarded.
 * tp_ctx_make must stay in step with the picture. Prototypes: ctx/fiber.h.
 * Tests: spec/unit/fiber_smoke.c (under qemu-aarch64)
 */

#define FRAME    176
#define OFF_LINK 0
#define OFF_X19  16
#define OFF_D8   96
#define OFF_FPCR 160

	.text

	.macro	function name
	.globl	\name
	.hidden	\name
	.type	\name, %function
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
	.cfi_def_cfa sp, FRAME
	.cfi_offset x29, OFF_LINK - FRAME
	.cfi_offset x30, OFF_LINK + 8 - FRAME
	.cfi_offset x19, OFF_X19 - FRAME
	.cfi_offset x20, OFF_X19 + 8 - FRAME
	.cfi_offset x21, OFF_X19 + 16 - FRAME
	.cfi_offset x22, OFF_X19 + 24 - FRAME
	.cfi_offset x23, OFF_X19 + 32 - FRAME
	.cfi_offset x24, OFF_X19 + 40 - FRAME
	.cfi_offset x25, OFF_X19 + 48 - FRAME
	.cfi_offset x26, OFF_X19 + 56 - FRAME
	.cfi_offset x27, OFF_X19 + 64 - FRAME
	.cfi_offset x28, OFF_X19 + 72 - FRAME
	.cfi_offset d8, OFF_D8 - FRAME
	.cfi_offset d9, OFF_D8 + 8 - FRAME
	.cfi_offset d10, OFF_D8 + 16 - FRAME
	.cfi_offset d11, OFF_D8 + 24 - FRAME
	.cfi_offset d12, OFF_D8 + 32 - FRAME
	.cfi_offset d13, OFF_D8 + 40 - FRAME
	.cfi_offset d14, OFF_D8 + 48 - FRAME
	.cfi_offset d15, OFF_D8 + 56 - FRAME
	.endm

	/* Pop the frame and go on where it was made. */
	.macro	resume
	ldp	x29, x30, [sp, #OFF_LINK]
	ldp	x19, x20, [sp, #OFF_X19]
	ldp	x21, x22, [sp, #OFF_X19 + 16]
	ldp	x23, x24, [sp, #OFF_X19 + 32]
	ldp	x25, x26, [sp, #OFF_X19 + 48]
	ldp	x27, x28, [sp, #OFF_X19 + 64]
	ldp	d8, d9, [sp, #OFF_D8]
	ldp	d10, d11, [sp, #OFF_D8 + 16]
	ldp	d12, d13, [sp, #OFF_D8 + 32]
	ldp	d14, d15, [sp, #OFF_D8 + 48]
	add	sp, sp, #FRAME
	.cfi_def_cfa_offset 0
	.irp	reg, x29, x30, x19, x20, x21, x22, x23, x24, x25, x26, x27, x28
	.cfi_same_value \reg
	.endr
	.irp	reg, d8, d9, d10, d11, d12, d13, d14, d15
	.cfi_same_value \reg
	.endr
	ret
	.endm

	/* void tp_ctx_switch(void **save_sp, void *to_sp) */
	function tp_ctx_switch
	sub	sp, sp, #FRAME
	.cfi_def_cfa_offset FRAME
	stp	x29, x30, [sp, #OFF_LINK]
	stp	x19, x20, [sp, #OFF_X19]
	stp	x21, x22, [sp, #OFF_X19 + 16]
	stp	x23, x24, [sp, #OFF_X19 + 32]
	stp	x25, x26, [sp, #OFF_X19 + 48]
	stp	x27, x28, [sp, #OFF_X19 + 64]
	stp	d8, d9, [sp, #OFF_D8]
	stp	d10, d11, [sp, #OFF_D8 + 16]
	stp	d12, d13, [sp, #OFF_D8 + 32]
	stp	d14, d15, [sp, #OFF_D8 + 48]
	mrs	x9, fpcr
	str	x9, [sp, #OFF_FPCR]
	mov	x10, sp
	str	x10, [x0]
	mov	sp, x1
	frame_cfi
	ldr	x10, [sp, #OFF_FPCR]
	cmp	x9, x10
	b.eq	1f
	msr	fpcr, x10
1:	resume
	end_function tp_ctx_switch

	/*
	 * void tp_ctx_jump(void *to_sp), does not return.
	 * Reads nothing through the old sp: a signal handler may put a thread
	 * here whose stack is used up.
	 */
	function tp_ctx_jump
	.cfi_undefined x30
	mov	sp, x0
	frame_cfi
	ldr	x10, [sp, #OFF_FPCR]
	msr	fpcr, x10
	resume
	end_function tp_ctx_jump

	/* void *tp_ctx_make(void *hi, void (*entry)(void *), void *arg) */
	function tp_ctx_make
	and	x9, x0, #-16
	stp	xzr, xzr, [x9, #-16]
	sub	x0, x9, #FRAME + 16
	adrp	x10, tp_ctx_entry
	add	x10, x10, :lo12:tp_ctx_entry
	stp	xzr, x10, [x0, #OFF_LINK]
	stp	x1, x2, [x0, #OFF_X19]
	stp	xzr, xzr, [x0, #OFF_X19 + 16]
	stp	xzr, xzr, [x0, #OFF_X19 + 32]
	stp	xzr, xzr, [x0, #OFF_X19 + 48]
	stp	xzr, xzr, [x0, #OFF_X19 + 64]
	stp	xzr, xzr, [x0, #OFF_D8]
	stp	xzr, xzr, [x0, #OFF_D8 + 16]
	stp	xzr, xzr, [x0, #OFF_D8 + 32]
	stp	xzr, xzr, [x0, #OFF_D8 + 48]
	stp	xzr, xzr, [x0, #OFF_FPCR]
	ret
	end_function tp_ctx_make

	/* The outermost frame of every fiber: nothing to unwind to. */
	function tp_ctx_entry
	.cfi_undefined x30
	nop
	mov	x0, x19
	mov	x1, x20
	bl	tp_fiber_main
	brk	#1
	end_function tp_ctx_entry

	.section .note.GNU-stack, "", %progbits
