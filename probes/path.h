/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Paths as the kernel holds them: names from the leaf up. */

#if IR_BY_TYPE_ONLY
static __always_inline u64 put_path(char *data, u64 off, u64 max, struct path *path,
				    u32 *flags, u32 cut)
{
	*flags |= cut;
	return off;
}
#else
/* Append a path leaf first, one NUL after each name; user space turns it round.
 * Walks to the root of the mount namespace, so a chroot does not hide where it is.
 * Returns the new offset; an unfinished walk is flagged with `cut`. */
static __always_inline u64 put_path(char *data, u64 off, u64 max, struct path *path,
				    u32 *flags, u32 cut)
{
	struct {
		struct dentry *parent;
		struct qstr name;
	} entry = {}; /* neighbours in struct dentry; one read instead of two */
	struct {
		struct vfsmount *mnt;
		struct dentry *dentry;
	} at = {};
	struct dentry *root = 0;
	struct mount *m, *above = 0;
	u64 start = off;
	long n;

	bpf_probe_read_kernel(&at, sizeof(at), path);
	PROBE(root, at.mnt, mnt_root);
	m = (void *)at.mnt - __builtin_offsetof(struct mount, mnt);
#pragma clang loop unroll(disable)
	for (int i = 0; i < PATH_DEPTH; i++) {
		if (at.dentry == root) {
			PROBE(above, m, mnt_parent);
			if (above == m || !above)
				return off;
			PROBE(at.dentry, m, mnt_mountpoint);
			m = above;
			PROBE(root, m, mnt.mnt_root);
			continue;
		}
		bpf_probe_read_kernel(&entry, sizeof(entry), &at.dentry->d_parent);
		if (!entry.parent || (entry.parent == at.dentry && off != start))
			return off;
		if (BEYOND(off, max - NAME_MAX_1))
			break;
		n = bpf_probe_read_kernel_str(data + off, NAME_MAX_1, entry.name.name);
		if (n <= 0 || n > NAME_MAX_1)
			break;
		off += n;
		if (entry.parent == at.dentry) /* a pseudo file: its name is its path */
			return off;
		at.dentry = entry.parent;
	}
	*flags |= cut;
	return off;
}
#endif

static __always_inline u64 put_cwd(char *data, u64 off, u64 max, struct task_struct *t,
				   u32 *flags)
{
	struct fs_struct *fs = 0;

#if !IR_BY_TYPE_ONLY
	PROBE(fs, t, fs);
#endif
	if (!fs) { /* not the same as "/", which has no names either */
		*flags |= IR_F_CWD_CUT;
		return off;
	}
	return put_path(data, off, max, &fs->pwd, flags, IR_F_CWD_CUT);
}
